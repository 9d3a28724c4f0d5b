// SPDX-License-Identifier: MIT
// attention_forward: the call in all its forms, on a stream or on the CPU.
#ifndef GIWA_ATTENTION_CALL_FORWARD_HPP
#define GIWA_ATTENTION_CALL_FORWARD_HPP

#include <giwa/attention/call/forward_types.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <int HeadSize, int HeadSizeV>
struct host_attention;  // defined by <giwa/host.hpp>

/// Refuses template arguments with a sentence.
template <int HeadSize, int HeadSizeV, class Tile, class T, class Mask, class Score>
constexpr void require_call() {
  static_assert(
      is_attention_tile<Tile> || is_fp32_accuracy<Tile>,
      "giwa::attention_forward: the tile is giwa::tile_shape<queries, keys> or giwa::automatic_tile; for fp32 also "
      "giwa::fp32, fp32_exact or tf32.");
  static_assert(!is_fp32_accuracy<Tile> || stdlib::same_as<T, fp32>,
                "giwa::attention_forward: fp32, fp32_exact and tf32 say how tensors of fp32 are multiplied.");
  require_mask_and_score<Mask, Score>();
  require_head_sizes<HeadSize, HeadSizeV>();
}

inline namespace GIWA_ARCH_TAG {
template <int HeadSize, int HeadSizeV, class Tile>
struct stream_attention;  // defined by <giwa/attention.cuh>

template <int HeadSize, int HeadSizeV, class Tile, class Where, class T, class O, class Mask, class Score>
status run_attention(const Where& where, const attention_views<T, O>& views, const Mask& mask, const Score& score,
                     const attention_options& options) {
  require_call<HeadSize, HeadSizeV, Tile, T, Mask, Score>();
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
    return stream_attention<HeadSize, HeadSizeV, Tile>::run(static_cast<cudaStream_t>(where), params);
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

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// Computes attention of every head, o = softmax(mask(score(scale q k^T))) v, in one pass that never writes the scores
/// to memory.
///
/// Template arguments:
///   - HeadSize: the head size of q, k, v and o, 1 to 512; other overloads take a second one for v and o, or a list
///   - Tile: automatic_tile, or tile_shape<queries, keys> for the kernel of the newest architecture in the build, 8.0
///     or 9.0 (for fp32 on tensor cores 9.0 only); the other kernels keep their own tiles. For fp32 also fp32,
///     fp32_exact or tf32
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - q: (batch, queries, heads, head size)
///   - k, v: (batch, keys, kv heads, head size); kv heads divide heads, and head h of q reads head h / (heads / kv
///     heads)
///   - o: (batch, queries, heads, head size of v); written
///   - mask: which scores are kept (attention_mask), such as causal{}; full{} keeps all
///   - score: changes scores after the scale and before the mask (score_modifier); with dropout{}, weights are dropped too
///   - options: scale, lse, sinks, alignment of the diagonal, workspace (attention_options)
///
/// The key on the diagonal of query i is i + offset. With as many keys as queries the offset is 0. Otherwise a mask or
/// a score modifier that uses the diagonal needs an alignment, from the mask, the modifier or the options: top_left,
/// bottom_right or offset(n). If options.lse is set, it receives the natural logarithm of the sum of e^score over the
/// keys that the row keeps, in fp32. A sink adds e^sink to that sum and nothing to o.
///
/// Elements are fp16, bf16 or fp32, one type for q, k and v; o may have a different one. q, k and v may also be e4m3, whose
/// factors the caller applies (docs/attention.md): then products run in fp32, without tensor cores. Strides are 64-bit numbers of
/// any value, including 0 and negative ones, except that the last must be 1. Sums are in fp32.
///
/// On a stream the call is asynchronous, allocates nothing, and may be captured in a graph; all memory must be
/// accessible to the device. On giwa::host all memory is host memory, and the call returns when o and lse are written.
///
/// The result is finite if (keys that a row sees) * max |v| and (head size) * max |q| * max |k| are at most 3.4e38
/// (docs/numerics.md). A row that keeps no key gives 0 and an lse of -inf. A NaN that a row sees makes it NaN; an
/// infinity that it sees in v gives an infinity or NaN. Values that are masked for a row, or outside its sequence, do
/// not affect it, NaN included. The bits of a row depend on types, head sizes, mask, tile, GPU and alignment of the
/// tensors. They do not depend on the batch, the heads, other rows or other sequences, with three exceptions: the result
/// of an infinite value; fp32 on tensor cores, where a group of rows shares a power of two (docs/attention_fp32.md); and
/// the tile of long calls on Hopper (docs/numerics.md).
///
/// Errors are returned as a status with the argument, the limit and the value seen, and nothing is written: sizes that
/// do not match, heads in q but none in k and v, an output that overlaps an input or, as far as its strides show,
/// itself (the memory of masks and score modifiers is not checked), different lengths without an alignment if the mask
/// or the score modifier uses the diagonal, memory that the device cannot access, and the errors of launch().
///
/// Source: Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2", for the order of the loops.
/// Example: `attention_forward<128>(stream, q, k, v, o, causal::bottom_right, {}, {.lse = lse})`.
template <int HeadSize, class Tile = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, class Mask = full, class Score = plain_score>
status attention_forward(const Where& where, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                         const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  return detail::run_attention<HeadSize, HeadSize, Tile>(where, detail::views_of(q, k, v, o, {}), mask, score, options);
}
/// Computes attention of sequences of different lengths (see `sequences`), which the kernel reads from memory. Packed
/// tensors have rank 3: q and o (all queries, heads, head size), k and v (all keys, kv heads, head size). Tensors of
/// rank 4 are as above.
template <int HeadSize, class Tile = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, int Rank, class Mask = full, class Score = plain_score>
status attention_forward(const Where& where, const sequences& packed, const tensor_view<Queries, Rank>& q,
                         const tensor_view<Keys, Rank>& k, const tensor_view<Values, Rank>& v,
                         const tensor_view<O, Rank>& o, const Mask& mask = {}, const Score& score = {},
                         const attention_options& options = {}) {
  if (const status s = detail::check_sequences(packed, q); !s.ok()) return s;
  return detail::run_attention<HeadSize, HeadSize, Tile>(where, detail::views_of(q, k, v, o, packed), mask, score,
                                                         options);
}

/// With two head sizes, `attention_forward<192, 128>(stream, q, k, v, o)`, the second one is that of v and o.
template <int HeadSize, int HeadSizeV, class Tile = automatic_tile, detail::attention_place Where, class Queries,
          class Keys, class Values, class O, class Mask = full, class Score = plain_score>
status attention_forward(const Where& where, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                         const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  return detail::run_attention<HeadSize, HeadSizeV, Tile>(where, detail::views_of(q, k, v, o, {}), mask, score,
                                                          options);
}
/// With two head sizes, the second one is that of v and o.
template <int HeadSize, int HeadSizeV, class Tile = automatic_tile, detail::attention_place Where, class Queries,
          class Keys, class Values, class O, int Rank, class Mask = full, class Score = plain_score>
status attention_forward(const Where& where, const sequences& packed, const tensor_view<Queries, Rank>& q,
                         const tensor_view<Keys, Rank>& k, const tensor_view<Values, Rank>& v,
                         const tensor_view<O, Rank>& o, const Mask& mask = {}, const Score& score = {},
                         const attention_options& options = {}) {
  if (const status s = detail::check_sequences(packed, q); !s.ok()) return s;
  return detail::run_attention<HeadSize, HeadSizeV, Tile>(where, detail::views_of(q, k, v, o, packed), mask, score,
                                                          options);
}

}  // namespace GIWA_ARCH_TAG

namespace detail {

/// The sizes of a list as template arguments of a call.
template <class Sizes>
struct choice_of_size;
template <int... Sizes>
struct choice_of_size<head_sizes<Sizes...>> {
  static_assert(sizeof...(Sizes) > 0, "giwa::head_sizes: the list is empty.");
  /// call(integral_constant) for the size that is `wanted`.
  template <class Call>
  static status run(int64 wanted, const Call& call) {
    status s = status::invalid("q", "the head size is not in the list that this call was compiled for");
    static_cast<void>(((wanted == Sizes && (s = call(stdlib::integral_constant<int, Sizes>{}), true)) || ...));
    return s;
  }
};

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// With `attention_forward<head_sizes<64, 128>>(…)` the head size of all tensors is known at run time and must be in
/// the list. Every size of the list is compiled, so there is no default list.
template <class Sizes, class Tile = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, class Mask = full, class Score = plain_score>
status attention_forward(const Where& where, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                         const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  return detail::choice_of_size<Sizes>::run(q.extent(3), [&](auto size) {
    return attention_forward<decltype(size)::value, Tile>(where, q, k, v, o, mask, score, options);
  });
}
/// With `head_sizes<…>` the head size of all tensors is known at run time and must be in the list.
template <class Sizes, class Tile = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, int Rank, class Mask = full, class Score = plain_score>
status attention_forward(const Where& where, const sequences& packed, const tensor_view<Queries, Rank>& q,
                         const tensor_view<Keys, Rank>& k, const tensor_view<Values, Rank>& v,
                         const tensor_view<O, Rank>& o, const Mask& mask = {}, const Score& score = {},
                         const attention_options& options = {}) {
  return detail::choice_of_size<Sizes>::run(q.extent(Rank - 1), [&](auto size) {
    return attention_forward<decltype(size)::value, Tile>(where, packed, q, k, v, o, mask, score, options);
  });
}

/// Explains a call that no other overload takes: it does not compile, and a static_assert says what to change.
///@{
template <int HeadSize, class Tile = automatic_tile, class... Arguments>
  requires(detail::may_explain<Arguments...>)
status attention_forward(const Arguments&...) {
  detail::explain_call<true, Arguments...>();
  return {};
}
template <int HeadSize, int HeadSizeV, class Tile = automatic_tile, class... Arguments>
  requires(detail::may_explain<Arguments...>)
status attention_forward(const Arguments&...) {
  detail::explain_call<true, Arguments...>();
  return {};
}
template <class Sizes = void, class Tile = automatic_tile, class... Arguments>
  requires(detail::may_explain<Arguments...>)
status attention_forward(const Arguments&...) {
  detail::explain_call<detail::is_head_sizes<Sizes>, Arguments...>();
  return {};
}
// Braces have no type, and become options where they stand too early.
template <int HeadSize, class Tile = automatic_tile, class Where, class One, class Two, class Three, class Four,
          class Five = attention_options, class Six = attention_options, class Seven = attention_options>
  requires(detail::may_explain<Where, One, Two, Three, Four, Five, Six, Seven>)
status attention_forward(const Where&, const One&, const Two&, const Three&, const Four&, const Five&, const Six& = {},
                         const Seven& = {}) {
  detail::explain_call<true, Where, One, Two, Three, Four, Five, Six, Seven>();
  return {};
}
template <int HeadSize, int HeadSizeV, class Tile = automatic_tile, class Where, class One, class Two, class Three,
          class Four, class Five = attention_options, class Six = attention_options, class Seven = attention_options>
  requires(detail::may_explain<Where, One, Two, Three, Four, Five, Six, Seven>)
status attention_forward(const Where&, const One&, const Two&, const Three&, const Four&, const Five&, const Six& = {},
                         const Seven& = {}) {
  detail::explain_call<true, Where, One, Two, Three, Four, Five, Six, Seven>();
  return {};
}
template <class Sizes, class Tile = automatic_tile, class Where, class One, class Two, class Three, class Four,
          class Five = attention_options, class Six = attention_options, class Seven = attention_options>
  requires(detail::may_explain<Where, One, Two, Three, Four, Five, Six, Seven>)
status attention_forward(const Where&, const One&, const Two&, const Three&, const Four&, const Five&, const Six& = {},
                         const Seven& = {}) {
  detail::explain_call<detail::is_head_sizes<Sizes>, Where, One, Two, Three, Four, Five, Six, Seven>();
  return {};
}
///@}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
