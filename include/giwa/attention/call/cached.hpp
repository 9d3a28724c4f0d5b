// SPDX-License-Identifier: MIT
// attention_cached: the call in all its forms, on a stream or on the CPU, and the sentences for wrong calls.
#ifndef GIWA_ATTENTION_CALL_CACHED_HPP
#define GIWA_ATTENTION_CALL_CACHED_HPP

#include <giwa/attention/call/call_plan.hpp>
#include <giwa/attention/call/forward.hpp>
#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/problem/cache.hpp>
#include <giwa/attention/problem/cached_checks.hpp>
#include <giwa/attention/problem/cached_params.hpp>
#include <giwa/attention/work/cached_workspace.hpp>
#include <giwa/numeric/fp8.hpp>
#include <giwa/numeric/int8_code.hpp>

namespace giwa::inline GIWA_ABI {

/// Any number of queries.
struct any_queries {};
/// At most 32 rows for each head of k, a row being one query of one head; a call with more is refused. Compiles only the
/// kernel for few queries. The bits are those of any_queries for sequences of up to 8 queries.
/// `attention_cached<128, few_queries>(…)`.
struct few_queries {};

namespace detail {

template <class T>
inline constexpr bool is_cache = false;
template <class T>
inline constexpr bool is_cache<kv_cache<T>> = true;

template <class Which>
concept query_count = stdlib::same_as<Which, any_queries> || stdlib::same_as<Which, few_queries>;

/// Fails to compile, with a sentence about the first error in arguments that no overload of attention_cached accepts.
template <bool HasHeadSize, class Where = void, class... Rest>
constexpr void explain_cached_call() {
  constexpr bool runs_somewhere = requires { requires attention_place<Where>; };
  constexpr bool has_cache = (is_cache<Rest> || ... || false);
  constexpr bool pointers = (is_data_pointer<Rest> || ... || false);
  static_assert(
      HasHeadSize,
      "giwa::attention_cached: the head size is a template argument: attention_cached<128>(stream, cache, q, o); "
      "giwa::choose_head_size<64, 128>(...) chooses one that is known at run time. nvcc 12.4 and 12.5 lose it where "
      "the call does not begin with giwa::.");
  static_assert(
      !HasHeadSize || runs_somewhere,
      "giwa::attention_cached: pass a stream or giwa::host as the first argument: cudaStream_t{} is the default "
      "stream, giwa::throw_if_failed(s) the stream of a result.");
  constexpr bool places = HasHeadSize && runs_somewhere;
  static_assert(!places || has_cache,
                "giwa::attention_cached: keys and values are a giwa::kv_cache, the second argument: "
                "giwa::kv_cache<const giwa::fp16> cache{.k = k, .v = v, .lengths = lengths}.");
  static_assert(!places || !has_cache || !pointers,
                "giwa::attention_cached: q and o must be views, not pointers: giwa::tensor_view<const giwa::fp16, 4> "
                "q(pointer, {batch, queries, heads, head_size}).");
  constexpr bool explained = !places || !has_cache || pointers;
  constexpr bool has_sequences = (stdlib::same_as<Rest, sequences> || ... || false);
  static_assert(
      explained || !has_sequences,
      "giwa::attention_cached: giwa::sequences is a member of the options: (stream, cache, q, o, {.sequences = "
      "sequences}).");
  constexpr bool other_options = (stdlib::same_as<Rest, attention_options> || ... || false);
  static_assert(explained || has_sequences || !other_options,
                "giwa::attention_cached: the options are giwa::cached_options, not giwa::attention_options.");
  static_assert(explained || has_sequences || other_options,
                "giwa::attention_cached: the arguments are (stream, cache, q, o, mask, score, options), with q and o "
                "giwa::tensor_view of one rank, 4 or 3, and the last three optional: options may come right after o.");
}

template <int HeadSize, int HeadSizeV>
struct host_cached;  // defined by <giwa/host.hpp>

/// The tensors of a call; the sentences come before the errors of the conversions.
template <class Element, class Queries, class O, int Rank>
GIWA_HOST_DEVICE constexpr auto cached_views_of(const kv_cache<Element>& cache, const sequences& packed,
                                                const tensor_view<Queries, Rank>& q, const tensor_view<O, Rank>& o) {
  using element = stdlib::remove_const_t<Queries>;
  using cached = stdlib::remove_const_t<Element>;
  static_assert(attention_element<element>, "giwa::attention_cached: elements of q must be giwa::fp16, bf16 or fp32.");
  static_assert(stdlib::same_as<element, cached> || scaled_element<cached> || row_format<cached>,
                "giwa::attention_cached: elements of the cache must be those of q, giwa::e4m3, int8_code, int4_pair, "
                "q8_0, q4_0 or rows_656.");
  static_assert(!stdlib::is_const_v<O>, "giwa::attention_cached: o is written, so its elements must not be const.");
  static_assert(attention_element<stdlib::remove_const_t<O>>,
                "giwa::attention_cached: elements of o must be giwa::fp16, bf16 or fp32.");
  return cached_views<element, cached, O>{in_four_dimensions(q), in_four_dimensions(o), with_values(cache),
                                          packed_queries_of(packed)};
}

inline namespace GIWA_ARCH_TAG {
template <int HeadSize, int HeadSizeV, class Which>
struct stream_cached;  // defined by <giwa/cache.cuh>

template <int HeadSize, int HeadSizeV, class Which, class Where, class Element, class Queries, class O, int Rank,
          class Mask, class Score>
status run_cached(const Where& where, const kv_cache<Element>& cache, const tensor_view<Queries, Rank>& q,
                  const tensor_view<O, Rank>& o, const Mask& mask, const Score& score, const cached_options& options) {
  static_assert(
      query_count<Which>,
      "giwa::attention_cached: after the head size comes giwa::any_queries or giwa::few_queries, or nothing.");
  static_assert(!stdlib::same_as<Mask, attention_options> && !stdlib::same_as<Score, attention_options>,
                "giwa::attention_cached: the options are giwa::cached_options, not giwa::attention_options.");
  require_mask_and_score<Mask, Score>();
  static_assert(!selects_keys<Mask> || (is_plain_score<Score> && !rotates_queries<Score>),
                "giwa::attention_cached: a call with a key_selection has no score modifier.");
  static_assert(
      !selects_keys<Mask> || stdlib::same_as<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Element>> ||
          latent_format<stdlib::remove_const_t<Element>>,
      "giwa::attention_cached: with a key_selection, elements of the cache are those of q or giwa::rows_656.");
  static_assert(!drops_weights<Score>,
                "giwa::attention_cached: dropout is for training; pass the score modifier in it, or "
                "giwa::plain_score{}.");
  require_head_sizes<HeadSize, HeadSizeV, attention_limits::cached_head_size>();
  const auto views = cached_views_of(cache, options.sequences, q, o);
  if (const status s = check_sequences_of_cache<Rank>(options.sequences, q.extent(0)); !s.ok()) return s;
  if (const status s = check_rank<Rank>(views, mask); !s.ok()) return s;
  if (const status s = check_cached(views, mask, score, options, HeadSize, HeadSizeV); !s.ok()) return s;
  if constexpr (stdlib::same_as<Which, few_queries> && !selects_keys<Mask>)
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
    return stream_cached<HeadSize, HeadSizeV, Which>::run(target_of(where), params);
  }
}

/// The call, with all of its template arguments.
template <int HeadSize, int HeadSizeV, class Which, class Where, class Element, class Queries, class O, int Rank,
          class Mask, class Score>
status cached_call(const Where& where, const kv_cache<Element>& cache, const tensor_view<Queries, Rank>& q,
                   const tensor_view<O, Rank>& o, const Mask& mask, const Score& score, const cached_options& options) {
  const last_arguments last(mask, score, options);
  if (const status s = last.check(); !s.ok()) return s;
  if constexpr (stdlib::same_as<Mask, key_selection>)
    return run_cached<HeadSize, HeadSizeV, Which>(where, cache_of_selection(cache, mask), q, o, selection_mask{mask},
                                                  last.score(), last.options());
  else
    return run_cached<HeadSize, HeadSizeV, Which>(where, cache, q, o, last.mask(), last.score(), last.options());
}
}  // namespace GIWA_ARCH_TAG

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// Computes attention of new queries to a cache of keys and values: decoding, speculative decoding, chunked prefill and
/// mixtures of them. The cache holds the keys and values of the queries too; append_to_cache() writes them.
///
/// Template arguments:
///   - HeadSize: the head size of q, k, v and o, 1 to 512; with `head_sizes<192, 128>` that of q and k, and that of v and o.
///     That of q and k may be up to 576 where v is the first columns of k: `head_sizes<576, 512>`
///     choose_head_size() chooses one that is known at run time
///   - Which: any_queries, or few_queries, which refuses more than 32 queries times heads of q for each head of k
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - cache: keys and values, contiguous or in pages, with the length of each sequence (kv_cache)
///   - q: (sequences, queries, heads, head size); kv heads divide heads, and head h of q reads head h / (heads / kv
///     heads)
///   - o: (sequences, queries, heads, head size of v); written. Packed queries, of which each sequence has its own number,
///     have rank 3: q (all rows, heads, head size), o (all rows, heads, head size of v)
///   - mask, score: as in attention_forward(). Queries count from 0 within the call, keys from 0 within the sequence,
///     and the diagonal of causal::bottom_right is query + keys - queries: the last query sees the last key.
///     score may be a rotated_queries, which rotates q by position and may contain a score modifier
///   - options: scale, lse, sinks, alignment of the diagonal, workspace, offsets of packed queries, prior (cached_options);
///     also in the place of the mask or of the score modifier, for calls that have none
///
/// Elements of q and o are fp16, bf16 or fp32; those of the cache are q's, or e4m3, int8_code or int4_pair (half the
/// head size) with scales. Strides are 64-bit numbers of any value, except that the last must be 1. Sums are in fp32.
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
/// lse. What only the device knows cannot be an error: kv_cache, page_table and sequences say what it means.
///
/// Example: `attention_cached<128>(stream, cache, q, o, causal::bottom_right, {.workspace = workspace})`.
template <int HeadSize, class Which = any_queries, detail::attention_place Where, class Element, class Queries, class O,
          int Rank, class Mask = cached_options, class Score = cached_options>
status attention_cached(const Where& where, const kv_cache<Element>& cache, const tensor_view<Queries, Rank>& q,
                        const tensor_view<O, Rank>& o, const Mask& mask = {}, const Score& score = {},
                        const cached_options& options = {}) {
  return detail::cached_call<HeadSize, HeadSize, Which>(where, cache, q, o, mask, score, options);
}
/// With two head sizes, `attention_cached<head_sizes<192, 128>>(stream, cache, q, o)`, the second one is that of v and o.
template <class Sizes, class Which = any_queries, detail::attention_place Where, class Element, class Queries, class O,
          int Rank, class Mask = cached_options, class Score = cached_options>
status attention_cached(const Where& where, const kv_cache<Element>& cache, const tensor_view<Queries, Rank>& q,
                        const tensor_view<O, Rank>& o, const Mask& mask = {}, const Score& score = {},
                        const cached_options& options = {}) {
  using pair = detail::head_size_pair<Sizes>;
  return detail::cached_call<pair::k, pair::v, Which>(where, cache, q, o, mask, score, options);
}

/// Explains a call that no other overload takes: it does not compile, and a static_assert says what to change. Arguments
/// in braces have no type, and become options; calls of before 0.3.0 have more of them.
template <int HeadSize = 0, class Which = any_queries, class Where = cached_options, class Cache = cached_options,
          class Queries = cached_options, class O = cached_options, class Mask = cached_options,
          class Score = cached_options, class Options = cached_options, class Other = cached_options, class... More>
  requires(detail::may_explain<Where, Cache, Queries, O, Mask, Score, Options, Other, More...>)
status attention_cached(const Where& = {}, const Cache& = {}, const Queries& = {}, const O& = {}, const Mask& = {},
                        const Score& = {}, const Options& = {}, const Other& = {}, const More&...) {
  detail::explain_cached_call<(HeadSize > 0), Where, Cache, Queries, O, Mask, Score, Options, Other, More...>();
  return {};
}

/// Prepares an attention_cached call on the current GPU, with the arguments and template arguments of that function except the
/// stream: `auto plan = throw_if_failed(make_attention_plan<128>(cache, q, o, causal::bottom_right, {.workspace = w}))`, then
/// `plan.launch(stream)` for each step of decoding. Launches nothing; may be called while a graph is captured. Errors: those of
/// attention_cached().
/// Parameters:
///   - cache, q, o, mask, score, options: of the call. Each launch reads lengths, offsets and page tables anew
///@{
template <class Sizes, class Which = any_queries, class Element, class Queries, class O, int Rank,
          class Mask = cached_options, class Score = cached_options>
auto make_attention_plan(const kv_cache<Element>& cache, const tensor_view<Queries, Rank>& q,
                         const tensor_view<O, Rank>& o, const Mask& mask = {}, const Score& score = {},
                         const cached_options& options = {}) {
  using pair = detail::head_size_pair<Sizes>;
  using kernels = detail::stream_cached<pair::k, pair::v, Which>;
  static_assert(detail::defined<kernels>,
                "giwa::make_attention_plan for a cache needs #include <giwa/cache.cuh>, in a file that nvcc compiles.");
  using plan = call_plan<
      typename kernels::template prepared<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Element>, O,
                                          detail::mask_in_kernel<detail::argument_or<Mask, cached_options, full>>,
                                          detail::argument_or<Score, cached_options, plain_score>>>;
  return plan::make([&](const auto& target) {
    return detail::cached_call<pair::k, pair::v, Which>(target, cache, q, o, mask, score, options);
  });
}
template <int HeadSize, class Which = any_queries, class Element, class Queries, class O, int Rank,
          class Mask = cached_options, class Score = cached_options>
auto make_attention_plan(const kv_cache<Element>& cache, const tensor_view<Queries, Rank>& q,
                         const tensor_view<O, Rank>& o, const Mask& mask = {}, const Score& score = {},
                         const cached_options& options = {}) {
  return make_attention_plan<head_sizes<HeadSize>, Which>(cache, q, o, mask, score, options);
}
///@}

}  // namespace GIWA_ARCH_TAG

/// Returns the bytes of the largest workspace that attention_cached() uses, whatever the lengths, the mask and the pages are.
/// With fewer bytes the call uses fewer multiprocessors where there are few sequences, and returns the same bits. 0 for fp32,
/// whose kernel uses no workspace, and for sizes that the call refuses. Needs no GPU.
/// Example: `workspace_bytes(cache, q, o, {}, {}, {}, {.multiprocessors = 132})`.
/// Parameters:
///   - cache, q, o, mask, score, options: of the call. Sizes count, and no memory is read: pointers may be null but
///     cache.pages.indices, which says that there are pages
///   - gpu: its multiprocessors; without a number, 192 are assumed
template <class Element, class Queries, class O, int Rank, class Mask = cached_options, class Score = cached_options>
GIWA_HOST_DEVICE constexpr int64 workspace_bytes(const kv_cache<Element>& cache, const tensor_view<Queries, Rank>& q,
                                                 const tensor_view<O, Rank>& o, const Mask& mask = {},
                                                 const Score& score = {}, const cached_options& options = {},
                                                 const workspace_gpu& gpu = {}) {
  detail::require_last_arguments<cached_options, detail::mask_in_kernel<Mask>, Score>();
  const detail::last_arguments last(mask, score, options);
  const sequences& packed = last.options().sequences;
  if constexpr (stdlib::same_as<Mask, key_selection>) {
    const auto views = detail::cached_views_of(detail::cache_of_selection(cache, mask), {}, q, o);
    cached_problem of_lists =
        detail::selected_views<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Element>, O>{views, mask.most}
            .problem();
    of_lists.division = last.options().division, of_lists.latent_tile = last.options().latent_tile;
    return workspace_bytes(of_lists, gpu);
  }
  cached_problem p = detail::cached_views_of(cache, {}, q, o).problem();
  p.division = last.options().division, p.latent_tile = last.options().latent_tile;
  if (Rank == 3) p.rows = q.extent(0), p.queries = packed.max_q, p.sequences = packed.count > 0 ? packed.count : -1;
  return workspace_bytes(p, gpu);
}

}  // namespace giwa::inline GIWA_ABI

#endif
