// SPDX-License-Identifier: MIT
// Attention to a cache by its definition, one row at a time in fp64.
#ifndef GIWA_ATTENTION_REFERENCE_CACHED_HPP
#define GIWA_ATTENTION_REFERENCE_CACHED_HPP

#include <giwa/attention/problem/cached_checks.hpp>
#include <giwa/attention/problem/cached_rows.hpp>
#include <giwa/attention/reference/reference.hpp>

namespace giwa::inline GIWA_ABI {

/// Computes attention to a cache by its definition, on one thread of the CPU. All arithmetic is fp64, except that a score
/// modifier computes in fp32. For tests: it is slow. Returns when o and options.lse are written. Head sizes are those of the views.
/// Parameters:
///   - cache, q, o, mask, score, options: as for attention_cached(), in host memory; o, and with it options.prior.o, may be fp64
///
/// Example: `attention_cached_reference(giwa::host, cache, q, o, causal::bottom_right)`.
template <class Element, class Queries, class O, int Rank, class Mask = cached_options, class Score = cached_options>
status attention_cached_reference(host_t, const kv_cache<Element>& cache, const tensor_view<Queries, Rank>& q,
                                  const tensor_view<O, Rank>& o, const Mask& mask = {}, const Score& score = {},
                                  const cached_options& options = {}) {
  detail::require_last_arguments<cached_options, Mask, Score>();
  using views = detail::cached_views<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Element>, O>;
  const detail::last_arguments last(mask, score, options);
  const sequences& packed = last.options().sequences;
  const views a{detail::in_four_dimensions(q), detail::in_four_dimensions(o), cache, detail::packed_queries_of(packed)};
  status s = last.check();
  if (s.ok()) s = detail::check_sequences_of_cache<Rank>(packed, q.extent(0));
  if (s.ok()) s = detail::check_rank<Rank>(a);
  if (s.ok())
    s = detail::check_cached(a, last.mask(), last.score(), last.options(), a.q.extent(3),
                             detail::head_size_of(a.cache.v));
  if (!s.ok() || a.o.size() == 0) return s;
  return detail::host_reference{}(detail::cached_params_of(a, last.mask(), last.score(), last.options()));
}

}  // namespace giwa::inline GIWA_ABI

#endif
