// SPDX-License-Identifier: MIT
// attention_cached: the call in all its forms, on a stream or on the CPU.
#ifndef GIWA_ATTENTION_CALL_CACHED_HPP
#define GIWA_ATTENTION_CALL_CACHED_HPP

#include <giwa/attention/call/cached_types.hpp>
#include <giwa/attention/call/forward.hpp>
#include <giwa/attention/problem/cached_checks.hpp>
#include <giwa/attention/problem/cached_params.hpp>
#include <giwa/numeric/fp8.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <int HeadSize, int HeadSizeV>
struct host_cached;  // defined by <giwa/host.hpp>

/// The tensors of a call; the sentences come before the errors of the conversions.
template <class Element, class Queries, class O, int Rank>
GIWA_HOST_DEVICE constexpr auto cached_views_of(const kv_cache<Element>& cache, const giwa::queries& packed,
                                                const tensor_view<Queries, Rank>& q, const tensor_view<O, Rank>& o) {
  using element = stdlib::remove_const_t<Queries>;
  using cached = stdlib::remove_const_t<Element>;
  static_assert(attention_element<element>, "giwa::attention_cached: elements of q must be giwa::fp16, bf16 or fp32.");
  static_assert(stdlib::same_as<element, cached> || stdlib::same_as<cached, e4m3>,
                "giwa::attention_cached: elements of the cache must be those of q, or giwa::e4m3.");
  static_assert(!stdlib::is_const_v<O>, "giwa::attention_cached: o is written, so its elements must not be const.");
  static_assert(attention_element<stdlib::remove_const_t<O>>,
                "giwa::attention_cached: elements of o must be giwa::fp16, bf16 or fp32.");
  return cached_views<element, cached, O>{in_four_dimensions(q), in_four_dimensions(o), cache, packed};
}

inline namespace GIWA_ARCH_TAG {
template <int HeadSize, int HeadSizeV, class Which>
struct stream_cached;  // defined by <giwa/cache.cuh>

template <int HeadSize, int HeadSizeV, class Which, class Where, class Element, class Queries, class O, int Rank,
          class Mask, class Score>
status run_cached(const Where& where, const kv_cache<Element>& cache, const giwa::queries& packed,
                  const tensor_view<Queries, Rank>& q, const tensor_view<O, Rank>& o, const Mask& mask,
                  const Score& score, const cached_options& options) {
  static_assert(
      query_count<Which>,
      "giwa::attention_cached: after the head sizes comes giwa::any_queries or giwa::few_queries, or nothing.");
  static_assert(!stdlib::same_as<Mask, cached_options> && !stdlib::same_as<Score, cached_options>,
                "giwa::attention_cached: the options come after the mask and the score modifier: (stream, cache, q, o, "
                "mask, giwa::plain_score{}, options).");
  static_assert(!stdlib::same_as<Mask, attention_options> && !stdlib::same_as<Score, attention_options>,
                "giwa::attention_cached: the options are giwa::cached_options, not giwa::attention_options.");
  require_mask_and_score<Mask, Score>();
  static_assert(!drops_weights<Score>,
                "giwa::attention_cached: dropout is for training; pass the score modifier in it, or "
                "giwa::plain_score{}.");
  require_head_sizes<HeadSize, HeadSizeV>();
  const auto views = cached_views_of(cache, packed, q, o);
  if (const status s = check_rank<Rank>(views); !s.ok()) return s;
  if (const status s = check_cached(views, mask, score, options, HeadSize, HeadSizeV); !s.ok()) return s;
  if constexpr (stdlib::same_as<Which, few_queries>)
    if (const status s = check_few_queries(views); !s.ok()) return s;
  if (views.o.size() == 0 || views.sequence_count() == 0) return {};
  const auto params = cached_params_of(views, mask, score, options);
  if constexpr (stdlib::same_as<Where, host_t>) {
    static_assert(defined<host_cached<HeadSize, HeadSizeV>>,
                  "giwa::attention_cached(giwa::host, ...) needs #include <giwa/host.hpp>.");
    return host_cached<HeadSize, HeadSizeV>::run(params);
  } else {
    static_assert(defined<stream_cached<HeadSize, HeadSizeV, Which>>,
                  "giwa::attention_cached on a stream needs #include <giwa/cache.cuh>, in a file that nvcc compiles.");
    return stream_cached<HeadSize, HeadSizeV, Which>::run(static_cast<cudaStream_t>(where), params);
  }
}
}  // namespace GIWA_ARCH_TAG

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// Computes attention of new queries to a cache of keys and values: decoding, speculative decoding, chunked prefill and
/// mixtures of them. The cache holds the keys and values of the queries too; append_to_cache() writes them.
///
/// Template arguments:
///   - HeadSize: the head size of q, k, v and o, 1 to 512; other overloads take a second one for v and o, or a list
///   - Which: any_queries, or few_queries, which refuses more than 32 queries times heads of q for each head of k
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - cache: keys and values, contiguous or in pages, with the length of each sequence (kv_cache)
///   - q: (sequences, queries, heads, head size); kv heads divide heads, and head h of q reads head h / (heads / kv
///     heads)
///   - o: (sequences, queries, heads, head size of v); written
///   - mask, score: as in attention_forward(). Queries count from 0 within the call, keys from 0 within the sequence,
///     and the diagonal of causal::bottom_right is query + keys - queries: the last query sees the last key
///   - options: scale, lse, sinks, alignment of the diagonal, workspace, prior (cached_options)
///
/// Elements of q and o are fp16, bf16 or fp32; those of the cache are q's, or e4m3 with scales. Strides are 64-bit
/// numbers of any value, except that the last must be 1. Sums are in fp32.
///
/// On a stream the call is asynchronous, allocates nothing, keeps nothing between calls, and may be captured in a graph;
/// lengths, offsets and page numbers are read when it runs, and all memory must be accessible to the device. On
/// giwa::host all memory is host memory, and the call returns when o and lse are written.
///
/// A row that keeps no key gives 0 and an lse of -inf. Values that are masked for a row, past the length of its sequence
/// or in pages that it does not have do not affect it, NaN included. A page number outside the cache is a page of zeros.
/// The bits of a row do not depend on the batch, on other sequences, or on the workspace.
///
/// Errors are returned as a status with the argument, the limit and the value seen, and nothing is written: those of
/// attention_forward(), a page without keys, a page table without lengths, scales that do not fit, a prior without its
/// lse. What only the device knows cannot be an error: kv_cache, page_table and queries say what it means.
///
/// Example: `attention_cached<128>(stream, cache, q, o, causal::bottom_right, plain_score{}, {.workspace = workspace})`.
template <int HeadSize, class Which = any_queries, detail::attention_place Where, class Element, class Queries, class O,
          class Mask = full, class Score = plain_score>
status attention_cached(const Where& where, const kv_cache<Element>& cache, const tensor_view<Queries, 4>& q,
                        const tensor_view<O, 4>& o, const Mask& mask = {}, const Score& score = {},
                        const cached_options& options = {}) {
  return detail::run_cached<HeadSize, HeadSize, Which>(where, cache, {}, q, o, mask, score, options);
}
/// Computes the same for packed queries, of which each sequence has its own number (see `queries`): q (all rows, heads,
/// head size), o (all rows, heads, head size of v).
template <int HeadSize, class Which = any_queries, detail::attention_place Where, class Element, class Queries, class O,
          class Mask = full, class Score = plain_score>
status attention_cached(const Where& where, const kv_cache<Element>& cache, const queries& packed,
                        const tensor_view<Queries, 3>& q, const tensor_view<O, 3>& o, const Mask& mask = {},
                        const Score& score = {}, const cached_options& options = {}) {
  return detail::run_cached<HeadSize, HeadSize, Which>(where, cache, packed, q, o, mask, score, options);
}

/// With two head sizes, `attention_cached<192, 128>(stream, cache, q, o)`, the second one is that of v and o.
template <int HeadSize, int HeadSizeV, class Which = any_queries, detail::attention_place Where, class Element,
          class Queries, class O, class Mask = full, class Score = plain_score>
status attention_cached(const Where& where, const kv_cache<Element>& cache, const tensor_view<Queries, 4>& q,
                        const tensor_view<O, 4>& o, const Mask& mask = {}, const Score& score = {},
                        const cached_options& options = {}) {
  return detail::run_cached<HeadSize, HeadSizeV, Which>(where, cache, {}, q, o, mask, score, options);
}
/// With two head sizes, the second one is that of v and o.
template <int HeadSize, int HeadSizeV, class Which = any_queries, detail::attention_place Where, class Element,
          class Queries, class O, class Mask = full, class Score = plain_score>
status attention_cached(const Where& where, const kv_cache<Element>& cache, const queries& packed,
                        const tensor_view<Queries, 3>& q, const tensor_view<O, 3>& o, const Mask& mask = {},
                        const Score& score = {}, const cached_options& options = {}) {
  return detail::run_cached<HeadSize, HeadSizeV, Which>(where, cache, packed, q, o, mask, score, options);
}

/// With `attention_cached<head_sizes<64, 128>>(…)` the head size of all tensors is known at run time and must be in the
/// list. Every size of the list is compiled.
template <class Sizes, class Which = any_queries, detail::attention_place Where, class Element, class Queries, class O,
          class Mask = full, class Score = plain_score>
status attention_cached(const Where& where, const kv_cache<Element>& cache, const tensor_view<Queries, 4>& q,
                        const tensor_view<O, 4>& o, const Mask& mask = {}, const Score& score = {},
                        const cached_options& options = {}) {
  return detail::choice_of_size<Sizes>::run(q.extent(3), [&](auto size) {
    return attention_cached<decltype(size)::value, Which>(where, cache, q, o, mask, score, options);
  });
}
/// With `head_sizes<…>` the head size of all tensors is known at run time and must be in the list.
template <class Sizes, class Which = any_queries, detail::attention_place Where, class Element, class Queries, class O,
          class Mask = full, class Score = plain_score>
status attention_cached(const Where& where, const kv_cache<Element>& cache, const queries& packed,
                        const tensor_view<Queries, 3>& q, const tensor_view<O, 3>& o, const Mask& mask = {},
                        const Score& score = {}, const cached_options& options = {}) {
  return detail::choice_of_size<Sizes>::run(q.extent(2), [&](auto size) {
    return attention_cached<decltype(size)::value, Which>(where, cache, packed, q, o, mask, score, options);
  });
}

/// Explains a call that no other overload takes: it does not compile, and a static_assert says what to change.
///@{
template <int HeadSize, class Which = any_queries, class... Arguments>
  requires(detail::may_explain<Arguments...>)
status attention_cached(const Arguments&...) {
  detail::explain_cached_call<true, Arguments...>();
  return {};
}
template <int HeadSize, int HeadSizeV, class Which = any_queries, class... Arguments>
  requires(detail::may_explain<Arguments...>)
status attention_cached(const Arguments&...) {
  detail::explain_cached_call<true, Arguments...>();
  return {};
}
template <class Sizes = void, class Which = any_queries, class... Arguments>
  requires(detail::may_explain<Arguments...>)
status attention_cached(const Arguments&...) {
  detail::explain_cached_call<detail::is_head_sizes<Sizes>, Arguments...>();
  return {};
}
// Braces have no type, and become options where they stand too early.
template <int HeadSize, class Which = any_queries, class Where, class Cache, class One, class Two,
          class Three = cached_options, class Four = cached_options, class Five = cached_options>
  requires(detail::may_explain<Where, Cache, One, Two, Three, Four, Five>)
status attention_cached(const Where&, const Cache&, const One&, const Two&, const Three&, const Four& = {},
                        const Five& = {}) {
  detail::explain_cached_call<true, Where, Cache, One, Two, Three, Four, Five>();
  return {};
}
template <int HeadSize, int HeadSizeV, class Which = any_queries, class Where, class Cache, class One, class Two,
          class Three = cached_options, class Four = cached_options, class Five = cached_options>
  requires(detail::may_explain<Where, Cache, One, Two, Three, Four, Five>)
status attention_cached(const Where&, const Cache&, const One&, const Two&, const Three&, const Four& = {},
                        const Five& = {}) {
  detail::explain_cached_call<true, Where, Cache, One, Two, Three, Four, Five>();
  return {};
}
template <class Sizes, class Which = any_queries, class Where, class Cache, class One, class Two,
          class Three = cached_options, class Four = cached_options, class Five = cached_options>
  requires(detail::may_explain<Where, Cache, One, Two, Three, Four, Five>)
status attention_cached(const Where&, const Cache&, const One&, const Two&, const Three&, const Four& = {},
                        const Five& = {}) {
  detail::explain_cached_call<detail::is_head_sizes<Sizes>, Where, Cache, One, Two, Three, Four, Five>();
  return {};
}
///@}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
