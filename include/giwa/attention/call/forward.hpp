// SPDX-License-Identifier: MIT
// attention_forward: the call in all its forms, on a stream or on the CPU.
#ifndef GIWA_ATTENTION_CALL_FORWARD_HPP
#define GIWA_ATTENTION_CALL_FORWARD_HPP

#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/problem/last_arguments.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <int HeadSize, int HeadSizeV>
struct host_attention;  // defined by <giwa/host.hpp>

/// Refuses template arguments with a sentence.
template <class Accuracy, class Tile, class T>
constexpr void require_accuracy_and_tile() {
  static_assert(is_fp32_accuracy<Accuracy>,
                "giwa::attention_forward: after the head size comes the accuracy, giwa::fp32, fp32_exact or tf32, and "
                "then the tile: attention_forward<128, giwa::fp32, giwa::tile_shape<128, 64>>(...).");
  static_assert(is_attention_tile<Tile>,
                "giwa::attention_forward: the tile is giwa::tile_shape<queries, keys> or giwa::automatic_tile.");
  static_assert(stdlib::same_as<Accuracy, fp32> || stdlib::same_as<T, fp32> ||
                    (stdlib::same_as<Accuracy, fp32_exact> && takes_scales<T>),
                "giwa::attention_forward: fp32_exact and tf32 say how tensors of fp32 are multiplied; fp32_exact also "
                "those of e4m3.");
  static_assert(stdlib::same_as<Accuracy, fp32> || stdlib::same_as<Tile, automatic_tile>,
                "giwa::attention_forward: a custom tile has the accuracy giwa::fp32.");
}

inline namespace GIWA_ARCH_TAG {
template <int HeadSize, int HeadSizeV, class Tile>
struct stream_attention;  // defined by <giwa/attention.cuh>

template <int HeadSize, int HeadSizeV, class Tile, class Where, class T, class O, class Mask, class Score>
status run_attention(const Where& where, const attention_views<T, O>& views, const Mask& mask, const Score& score,
                     const attention_options& options) {
  require_mask_and_plain_queries<Mask, Score>();
  require_head_sizes<HeadSize, HeadSizeV>();
  if constexpr (drops_weights<Score>)
    if (score.probability() == 0 && score.check_numbers().ok())
      return run_attention<HeadSize, HeadSizeV, Tile>(where, views, mask, score.score, options);
  if (const status s = check_attention(views, mask, score, options, HeadSize, HeadSizeV); !s.ok()) return s;
  if (views.o.size() == 0 || views.problem().batch == 0) return {};
  const auto params = params_of(views, mask, score, options);
  if constexpr (stdlib::same_as<Where, host_t>) {
    static_assert(defined<host_attention<HeadSize, HeadSizeV>>,
                  "giwa::attention_forward(giwa::host, ...) needs #include <giwa/host.hpp>.");
    return host_attention<HeadSize, HeadSizeV>::run(params);
  } else {
    static_assert(
        defined<stream_attention<HeadSize, HeadSizeV, Tile>>,
        "giwa::attention_forward on a stream needs #include <giwa/attention.cuh>, in a file that nvcc compiles.");
    return stream_attention<HeadSize, HeadSizeV, Tile>::run(target_of(where), params);
  }
}
}  // namespace GIWA_ARCH_TAG

template <class Queries, class Keys, class Values, class O, int Rank>
GIWA_HOST_DEVICE constexpr auto views_of(const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                                         const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o,
                                         const sequences& packed) {
  // In this function, so that the sentences come before the errors of the conversions below.
  using element = stdlib::remove_const_t<Queries>;
  static_assert(stdlib::same_as<element, stdlib::remove_const_t<Keys>> &&
                    stdlib::same_as<element, stdlib::remove_const_t<Values>>,
                "giwa::attention_forward: q, k and v must have one element type.");
  static_assert(attention_input<element>,
                "giwa::attention_forward: elements of q, k and v must be giwa::fp16, bf16, fp32 or e4m3.");
  static_assert(!stdlib::is_const_v<O>, "giwa::attention_forward: o is written, so its elements must not be const.");
  static_assert(attention_element<stdlib::remove_const_t<O>>,
                "giwa::attention_forward: elements of o must be giwa::fp16, bf16 or fp32.");
  using views = attention_views<element, O>;
  return views{in_four_dimensions(q), in_four_dimensions(k), in_four_dimensions(v), in_four_dimensions(o), packed};
}

inline namespace GIWA_ARCH_TAG {
/// The call, with all of its template arguments.
template <int HeadSize, int HeadSizeV, class Accuracy, class Tile, class Where, class Queries, class Keys, class Values,
          class O, int Rank, class Mask, class Score>
status forward_call(const Where& where, const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                    const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o, const Mask& mask,
                    const Score& score, const attention_options& options) {
  require_accuracy_and_tile<Accuracy, Tile, stdlib::remove_const_t<Queries>>();
  const last_arguments last(mask, score, options);
  const auto views = views_of(q, k, v, o, last.options().sequences);
  status s = last.check();
  if (s.ok()) s = check_sequences(last.options().sequences, q);
  if (!s.ok()) return s;
  return run_attention<HeadSize, HeadSizeV, kernel_choice<Accuracy, Tile>>(where, views, last.mask(), last.score(),
                                                                           last.options());
}
}  // namespace GIWA_ARCH_TAG

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// Computes attention of every head, o = softmax(mask(score(scale q k^T))) v, in one pass that never writes the scores
/// to memory.
///
/// Template arguments:
///   - HeadSize: the head size of q, k, v and o, 1 to 512; with `head_sizes<192, 128>` that of q and k, and that of v and o.
///     choose_head_size() chooses one that is known at run time
///   - Accuracy: fp32, fp32_exact or tf32, for the products of fp32 tensors; fp32_exact multiplies e4m3 in fp32 on Hopper too
///   - Tile: automatic_tile, or tile_shape<queries, keys> for the kernel of the newest architecture in the build, 8.0
///     or 9.0 (for fp32 on tensor cores 9.0 only); the other kernels keep their own tiles
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - q: (batch, queries, heads, head size)
///   - k, v: (batch, keys, kv heads, head size); kv heads divide heads, and head h of q reads head h / (heads / kv
///     heads)
///   - o: (batch, queries, heads, head size of v); written. Tensors of packed sequences have rank 3: q and o (all queries,
///     heads, head size), k and v (all keys, kv heads, head size)
///   - mask: which scores are kept (attention_mask), such as causal{}; full{} keeps all
///   - score: changes scores after the scale and before the mask (score_modifier); with dropout{}, weights are dropped too
///   - options: scale, lse, sinks, alignment of the diagonal, workspace, lengths of sequences (attention_options); also in
///     the place of the mask or of the score modifier, for calls that have none
///
/// The key on the diagonal of query i is i + offset. With as many keys as queries the offset is 0. Otherwise a mask or
/// a score modifier that uses the diagonal needs an alignment, from the mask, the modifier or the options: top_left,
/// bottom_right or offset(n). If options.lse is set, it receives the natural logarithm of the sum of e^score over the
/// keys that the row keeps, in fp32. A sink adds e^sink to that sum and nothing to o.
///
/// Elements are fp16, bf16 or fp32, one type for q, k and v; o may have a different one. q, k and v may also be e4m3,
/// with options.scales (docs/attention.md): on Hopper the weights of the softmax are rounded to e4m3 then, elsewhere products run in
/// fp32, without tensor cores. Strides are 64-bit numbers of
/// any value, including 0 and negative ones, except that the last must be 1, or of a v of e4m3 that of its keys (K-major). Sums are in
/// fp32.
///
/// On a stream the call is asynchronous, allocates nothing, and may be captured in a graph; all memory must be
/// accessible to the device. On giwa::host all memory is host memory, and the call returns when o and lse are written.
///
/// The result is finite if (keys that a row sees) * max |v| and (head size) * max |q| * max |k| are at most 3.4e38
/// (docs/numerics.md). A row that keeps no key gives 0 and an lse of -inf. A NaN that a row sees makes it NaN; an
/// infinity that it sees in v gives an infinity or NaN. Values that are masked for a row, or outside its sequence, do
/// not affect it, NaN included. The bits of a row depend on types, head sizes, mask, tile, GPU, alignment of the
/// tensors and on whether v is K-major. They do not depend on the batch, the heads, other rows or other sequences, with three exceptions: the result
/// of an infinite value; fp32 on tensor cores, where a group of rows shares a power of two (docs/attention_fp32.md); and
/// the tile of long calls on Hopper (docs/numerics.md).
///
/// Errors are returned as a status with the argument, the limit and the value seen, and nothing is written: sizes that
/// do not match, heads in q but none in k and v, an output that overlaps an input or, as far as its strides show,
/// itself (the memory of masks and score modifiers is not checked), different lengths without an alignment if the mask
/// or the score modifier uses the diagonal, memory that the device cannot access, and the errors of launch().
///
/// Source: Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2", for the order of the loops.
/// Example: `attention_forward<128>(stream, q, k, v, o, causal::bottom_right, {.lse = lse})`.
template <int HeadSize, class Accuracy = fp32, class Tile = automatic_tile, detail::attention_place Where,
          class Queries, class Keys, class Values, class O, int Rank, class Mask = attention_options,
          class Score = attention_options>
status attention_forward(const Where& where, const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                         const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  return detail::forward_call<HeadSize, HeadSize, Accuracy, Tile>(where, q, k, v, o, mask, score, options);
}
/// With two head sizes, `attention_forward<head_sizes<192, 128>>(stream, q, k, v, o)`, the second one is that of v and o.
template <class Sizes, class Accuracy = fp32, class Tile = automatic_tile, detail::attention_place Where, class Queries,
          class Keys, class Values, class O, int Rank, class Mask = attention_options, class Score = attention_options>
status attention_forward(const Where& where, const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                         const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  using pair = detail::head_size_pair<Sizes>;
  return detail::forward_call<pair::k, pair::v, Accuracy, Tile>(where, q, k, v, o, mask, score, options);
}

/// Explains a call that no other overload takes: it does not compile, and a static_assert says what to change. Arguments
/// in braces have no type, and become options; calls of before 0.3.0 have more of them.
template <int HeadSize = 0, class Accuracy = fp32, class Tile = automatic_tile, class Where = attention_options,
          class Queries = attention_options, class Keys = attention_options, class Values = attention_options,
          class O = attention_options, class Mask = attention_options, class Score = attention_options,
          class Options = attention_options, class Other = attention_options, class... More>
  requires(detail::may_explain<Where, Queries, Keys, Values, O, Mask, Score, Options, Other, More...>)
status attention_forward(const Where& = {}, const Queries& = {}, const Keys& = {}, const Values& = {}, const O& = {},
                         const Mask& = {}, const Score& = {}, const Options& = {}, const Other& = {}, const More&...) {
  detail::explain_call<(HeadSize > 0), Where, Queries, Keys, Values, O, Mask, Score, Options, Other, More...>();
  return {};
}

}  // namespace GIWA_ARCH_TAG

/// Returns the bytes of workspace that attention_forward() can use: a work counter of 8 bytes, and for fp32 with head sizes
/// up to 256 the split fp16 copies of q, k and v, about as large as these tensors with head sizes rounded up to 64. The largest
/// int64 where no 64-bit number holds the size, 8 for sizes that the call refuses. Needs no GPU.
/// Example: `workspace_bytes(q, k, v, o)`, `workspace_bytes(q, k, v, o, {.sequences = sequences})`.
/// Parameters:
///   - q, k, v, o, mask, score, options: of the call. Sizes count, and no memory is read: pointers may be null
template <class Queries, class Keys, class Values, class O, int Rank, class Mask = attention_options,
          class Score = attention_options>
GIWA_HOST_DEVICE constexpr int64 workspace_bytes(const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                                                 const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o,
                                                 const Mask& mask = {}, const Score& score = {},
                                                 const attention_options& options = {}) {
  detail::require_last_arguments<attention_options, Mask, Score>();
  const detail::last_arguments last(mask, score, options);
  return workspace_bytes(detail::problem_of_sizes<Rank>(detail::views_of(q, k, v, o, last.options().sequences)));
}

}  // namespace giwa::inline GIWA_ABI

#endif
