// SPDX-License-Identifier: MIT
// The types that select a variant of attention_forward, and an error sentence for each call that no overload accepts.
#ifndef GIWA_ATTENTION_CALL_FORWARD_TYPES_HPP
#define GIWA_ATTENTION_CALL_FORWARD_TYPES_HPP

#include <giwa/attention/problem/params.hpp>
#include <giwa/base/arch.hpp>
#include <giwa/device/host.hpp>
#include <giwa/device/stream.hpp>
#include <giwa/tile/shape.hpp>

namespace giwa::inline GIWA_ABI {

/// The fastest measured tile for a GPU and a head size.
struct automatic_tile {};

/// Multiplies fp32 tensors with ordinary arithmetic. fp32_exact, tf32 and fp32 stand in the place of a tile in a call
/// on a stream:
/// `attention_forward<128, fp32_exact>(…)`. The default, fp32, has fp32's accuracy relative to the largest numbers of
/// each row. With a workspace (attention_options) it runs on tensor cores, without one as fp32_exact. Its tiles hold
/// two fp16 numbers per element, twice the bytes of a 16-bit tile.
struct fp32_exact {};
/// Multiplies fp32 tensors on tensor cores, with inputs and P rounded to the 11 bits of tf32. Without a workspace it
/// runs as fp32_exact.
struct tf32 {};

/// A list of head sizes from which a call selects one at run time: `attention_forward<head_sizes<64, 128>>(…)`.
template <int... Sizes>
struct head_sizes {};

namespace detail {

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

template <class T>
inline constexpr int view_rank = 0;
template <class T, int Rank>
inline constexpr int view_rank<tensor_view<T, Rank>> = Rank;
template <class T, int Rank>
void from_view(const tensor_view<T, Rank>*);
/// A type derived from tensor_view. The overload that explains wrong calls would be a better match for it than the right one.
template <class T>
concept derived_view = view_rank<T> == 0 && requires(const T* view) { from_view(view); };
template <class T>
inline constexpr bool is_data_pointer = stdlib::is_pointer_v<T> && !stdlib::convertible_to<T, cudaStream_t>;
/// Whether a template argument is a list of head sizes.
template <class Sizes>
inline constexpr bool is_head_sizes = false;
template <int... Sizes>
inline constexpr bool is_head_sizes<head_sizes<Sizes...>> = true;

/// How many arguments are views of a rank.
template <int Rank, class... Arguments>
inline constexpr int views_of_rank = (0 + ... + static_cast<int>(view_rank<Arguments> == Rank));

/// Whether overloads that explain a call may take it.
template <class... Arguments>
inline constexpr bool may_explain = !(derived_view<Arguments> || ...);

/// Fails to compile, with a sentence about the first error in arguments that no overload of attention_forward accepts.
template <bool HasHeadSize, class Where = void, class... Rest>
constexpr void explain_call() {
  constexpr bool pointers = (is_data_pointer<Rest> || ... || false);
  constexpr bool has_sequences = (stdlib::same_as<Rest, sequences> || ... || false);
  constexpr bool packed = ((view_rank<Rest> == 3) || ... || false);
  constexpr bool runs_somewhere = requires { requires attention_place<Where>; };
  static_assert(
      HasHeadSize,
      "giwa::attention_forward: the head size is a template argument: attention_forward<128>(stream, q, k, v, o), or "
      "attention_forward<giwa::head_sizes<64, 128>>(...) for sizes known at run time.");
  static_assert(
      !HasHeadSize || runs_somewhere,
      "giwa::attention_forward: pass a stream or giwa::host as the first argument: cudaStream_t{} is the default "
      "stream, giwa::throw_if_failed(s) the stream of a result.");
  static_assert(
      !HasHeadSize || !runs_somewhere || !pointers,
      "giwa::attention_forward: q, k, v and o must be views, not pointers: giwa::tensor_view<const giwa::fp16, 4> "
      "q(pointer, {batch, queries, heads, head_size}).");
  static_assert(
      !HasHeadSize || !runs_somewhere || pointers || !packed || has_sequences,
      "giwa::attention_forward: views of rank 3 are packed sequences: pass giwa::sequences after the stream, or views "
      "of rank 4 (batch, rows, heads, head size).");
  constexpr bool explained = !HasHeadSize || !runs_somewhere || pointers || (packed && !has_sequences);
  constexpr bool tensors = views_of_rank<4, Rest...> == 4 || (has_sequences && views_of_rank<3, Rest...> == 4);
  constexpr bool options = tensors && (stdlib::same_as<Rest, attention_options> || ... || false);
  static_assert(explained || !options,
                "giwa::attention_forward: options, in braces too, come after the mask and the score modifier: (stream, "
                "q, k, v, o, giwa::full{}, giwa::plain_score{}, {.scale = 0.1f}).");
  static_assert(
      explained || options,
      "giwa::attention_forward: the arguments are (stream, q, k, v, o, mask, score, options), with q, k, v and o "
      "giwa::tensor_view of one rank, and the last three optional; giwa::sequences may follow the stream.");
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
