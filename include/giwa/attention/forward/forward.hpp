// SPDX-License-Identifier: MIT
// attention_forward: the call in all its forms, on a stream or on the CPU.
#ifndef GIWA_ATTENTION_FORWARD_FORWARD_HPP
#define GIWA_ATTENTION_FORWARD_FORWARD_HPP

#include <giwa/attention/problem/params.hpp>
#include <giwa/base/arch.hpp>
#include <giwa/device/host.hpp>
#include <giwa/device/stream.hpp>
#include <giwa/tile/shape.hpp>

namespace giwa::inline GIWA_ABI {

/// The best tile that giwa knows for a GPU and a head size.
struct automatic_tile {};

/// How a call on a stream multiplies fp32 tensors, in the place of a tile: `attention_forward<128, tf32>(…)`. fp32, the default:
/// to fp32's accuracy, relative to the largest numbers of each row, on tensor cores where there is a workspace (attention_options),
/// else as fp32_exact. A tile that is named for it holds two pieces: twice the bytes of a 16-bit one.
/// fp32_exact: by ordinary arithmetic.
struct fp32_exact {};
/// Numbers and weights rounded to 11 bits, which are tf32's; where there is no workspace, as fp32_exact.
struct tf32 {};

/// Head sizes to choose from when the program runs: `attention_forward<head_sizes<64, 128>>(…)`.
template <int... Sizes>
struct head_sizes {};

namespace detail {

template <class Queries, class Keys, class Values, class O>
GIWA_HOST_DEVICE constexpr void require_attention_types() {
  static_assert(stdlib::same_as<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Keys>> &&
                    stdlib::same_as<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Values>>,
                "giwa::attention_forward: q, k and v must have one element type.");
  static_assert(attention_element<stdlib::remove_const_t<Queries>>,
                "giwa::attention_forward: elements of q, k and v must be giwa::fp16, bf16 or fp32.");
  static_assert(!stdlib::is_const_v<O>, "giwa::attention_forward: o is written, so its elements must not be const.");
  static_assert(attention_element<O>, "giwa::attention_forward: elements of o must be giwa::fp16, bf16 or fp32.");
}

template <int HeadSize, int HeadSizeV>
GIWA_HOST_DEVICE constexpr void require_head_sizes() {
  static_assert(HeadSize >= 1 && HeadSizeV >= 1 && HeadSize <= attention_limits::head_size &&
                    HeadSizeV <= attention_limits::head_size,
                "giwa::attention_forward: head sizes must be from 1 to 512.");
}

template <class Tile>
inline constexpr bool is_attention_tile = stdlib::same_as<Tile, automatic_tile>;
template <int Rows, int Columns>
inline constexpr bool is_attention_tile<tile_shape<Rows, Columns>> = true;
template <class How>
inline constexpr bool is_fp32_accuracy =
    stdlib::same_as<How, fp32> || stdlib::same_as<How, fp32_exact> || stdlib::same_as<How, tf32>;

/// Where a call runs: a stream, or anything that converts to one, or the host.
template <class Where>
concept attention_place = stdlib::same_as<Where, host_t> || stdlib::convertible_to<const Where&, cudaStream_t>;

template <int HeadSize, int HeadSizeV>
struct host_attention;  // defined by <giwa/host.hpp>

inline namespace GIWA_ARCH_TAG {
template <int HeadSize, int HeadSizeV, class Tile>
struct stream_attention;  // defined by <giwa/attention.cuh>

template <int HeadSize, int HeadSizeV, class Tile, class Where, class T, class O, class Mask, class Score>
status run_attention(const Where& where, const attention_views<T, O>& views, const Mask& mask, const Score& score,
                     const attention_options& options) {
  static_assert(
      is_attention_tile<Tile> || is_fp32_accuracy<Tile>,
      "giwa::attention_forward: the tile is giwa::tile_shape<queries, keys> or giwa::automatic_tile; for fp32 also "
      "giwa::fp32, fp32_exact or tf32.");
  static_assert(!is_fp32_accuracy<Tile> || stdlib::same_as<T, fp32>,
                "giwa::attention_forward: fp32, fp32_exact and tf32 say how tensors of fp32 are multiplied.");
  require_mask_and_score<Mask, Score>();
  require_head_sizes<HeadSize, HeadSizeV>();
  if (const status s = check_attention(views, mask, score, options, HeadSize, HeadSizeV); !s.ok()) return s;
  if (views.o.size() == 0 || views.problem().batch == 0) return {};
  const auto params = params_of(views, mask, score, options);
  if constexpr (stdlib::same_as<Where, host_t>) {
    static_assert(defined<host_attention<HeadSize, HeadSizeV>>,
                  "giwa::attention_forward(giwa::host, …) needs #include <giwa/host.hpp>.");
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
  require_attention_types<Queries, Keys, Values, O>();
  using views = attention_views<stdlib::remove_const_t<Queries>, O>;
  return views{in_four_dimensions(q), in_four_dimensions(k), in_four_dimensions(v), in_four_dimensions(o), packed};
}

}  // namespace detail

// softmax(score(scale q k^T) masked) v, for every head, in one pass that never writes the scores to memory ("FlashAttention",
// Dao et al. 2022, and 2023 for the order of the loops).
//
// q (batch, queries, heads, head size), k and v (batch, keys, kv heads, head size), o like q with v's head size. Any strides of
// 64 bits, also 0 and negative ones, but the last is 1; kv heads divide heads, and head h reads kv head h / (heads / kv heads).
// Head sizes 1 to 512, v's own where two are given. Elements are fp16, bf16 or fp32, o's may be another of them; sums are in
// fp32. With `sequences` the tensors are packed, (all queries, heads, head size), and lengths are read by the kernel.
//
// A score is scaled, then modified (score.hpp), then masked (mask.hpp). A row that keeps no key gives 0, and an lse of -inf;
// NaN in what is kept propagates, an infinite value that is kept gives an infinity or NaN; what is masked or lies outside its
// sequence is never seen, be it NaN.
// The bits of a row depend on types, head sizes, mask, tile, GPU and alignment of the tensors; not on batch, heads, other
// rows or other sequences, but for what an infinite value gives, and but for fp32 on tensor cores, whose groups of rows share a
// power of two (docs/attention_fp32.md).
//
// On a stream of the current device: asynchronous, allocates nothing, may be captured in a graph. With giwa::host: done when it
// returns, pointers lead to the host's memory.
// A tile that is named is that of the kernel for the newest architecture in the build, 8.0 or 9.0, of fp32 on tensor cores 9.0
// alone; others keep their own.
// Errors: sizes that do not belong together, no heads of keys, an output that overlaps a tensor (what masks and score modifiers
// point to is not looked at) or, as far as its strides tell, itself, unequal lengths without an alignment where a mask speaks of
// the diagonal, those of launch(). Nothing is written then.
inline namespace GIWA_ARCH_TAG {

/// `attention_forward<128>(stream, q, k, v, o)`, `attention_forward<128, tile_shape<64, 64>>(…)`: of one head size.
template <int HeadSize, class Tile = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, class Mask = full, class Score = plain_score>
status attention_forward(const Where& where, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                         const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  return detail::run_attention<HeadSize, HeadSize, Tile>(where, detail::views_of(q, k, v, o, {}), mask, score, options);
}
/// The same of packed sequences.
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

/// `attention_forward<192, 128>(…)`: v and o have a head size of their own.
template <int HeadSize, int HeadSizeV, class Tile = automatic_tile, detail::attention_place Where, class Queries,
          class Keys, class Values, class O, class Mask = full, class Score = plain_score>
status attention_forward(const Where& where, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                         const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  return detail::run_attention<HeadSize, HeadSizeV, Tile>(where, detail::views_of(q, k, v, o, {}), mask, score,
                                                          options);
}
/// The same of packed sequences.
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

/// `attention_forward<head_sizes<64, 128>>(…)`: the head size is looked up in the caller's list, and is v's as well. There is
/// no list by default: each size is compiled.
template <class Sizes, class Tile = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, class Mask = full, class Score = plain_score>
status attention_forward(const Where& where, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                         const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  return detail::choice_of_size<Sizes>::run(q.extent(3), [&](auto size) {
    return attention_forward<decltype(size)::value, Tile>(where, q, k, v, o, mask, score, options);
  });
}
/// The same of packed sequences.
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

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
