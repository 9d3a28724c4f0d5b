// SPDX-License-Identifier: MIT
// Attention to a cache by its definition, one row at a time in fp64: every other path is compared with it.
#ifndef GIWA_ATTENTION_REFERENCE_CACHED_HPP
#define GIWA_ATTENTION_REFERENCE_CACHED_HPP

#include <giwa/attention/problem/cached_checks.hpp>
#include <giwa/attention/problem/cached_rows.hpp>
#include <giwa/attention/reference/reference.hpp>

namespace giwa::inline GIWA_ABI {

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
namespace detail {

/// Checks the call, then calls run(params).
template <class T, class Element, class O, class Mask, class Score, class Run>
status with_cached_reference(const cached_views<T, Element, O>& views, const Mask& mask, const Score& score,
                             const cached_options& options, const Run& run) {
  require_mask_and_score<Mask, Score>();
  const status s = check_cached(views, mask, score, options, views.q.extent(3), views.cache.v.extent(3));
  if (!s.ok() || views.o.size() == 0) return s;
  return run(cached_params_of(views, mask, score, options));
}

}  // namespace detail

/// Computes attention to a cache by its definition, on one thread of the CPU. All arithmetic is fp64, except that a score
/// modifier computes in fp32. For tests: it is slow. The arguments are those of attention_cached(), in host memory, with
/// these differences: head sizes are those of the views; o, and with it options.prior.o, may be fp64; options.workspace
/// is not used. Returns when o and options.lse are written.
/// Example: `attention_cached_reference(giwa::host, cache, q, o, causal::bottom_right)`.
template <class Element, class Queries, class O, class Mask = full, class Score = plain_score>
status attention_cached_reference(host_t, const kv_cache<Element>& cache, const tensor_view<Queries, 4>& q,
                                  const tensor_view<O, 4>& o, const Mask& mask = {}, const Score& score = {},
                                  const cached_options& options = {}) {
  using views = detail::cached_views<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Element>, O>;
  return detail::with_cached_reference(views{q, o, cache, {}}, mask, score, options, detail::host_reference{});
}
/// Computes the same for packed queries: q (all rows, heads, head size), o (all rows, heads, head size of v).
template <class Element, class Queries, class O, class Mask = full, class Score = plain_score>
status attention_cached_reference(host_t, const kv_cache<Element>& cache, const queries& packed,
                                  const tensor_view<Queries, 3>& q, const tensor_view<O, 3>& o, const Mask& mask = {},
                                  const Score& score = {}, const cached_options& options = {}) {
  using views = detail::cached_views<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Element>, O>;
  const views a{detail::in_four_dimensions(q), detail::in_four_dimensions(o), cache, packed};
  if (const status s = detail::check_rank<3>(a); !s.ok()) return s;
  return detail::with_cached_reference(a, mask, score, options, detail::host_reference{});
}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
