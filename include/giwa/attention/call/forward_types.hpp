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

/// Accuracies of products of fp32 tensors: `attention_forward<128, tf32>(…)`. The default, fp32, has fp32's accuracy
/// relative to the largest numbers of each row. With a workspace (attention_options) it runs on tensor cores, without one
/// as fp32_exact. Its tiles hold two fp16 numbers per element, twice the bytes of a 16-bit tile. Tensors of other types are
/// multiplied as they are, and have no other accuracy than fp32.
///@{
/// Ordinary arithmetic.
struct fp32_exact {};
/// Tensor cores, with inputs and P rounded to the 11 bits of tf32. Without a workspace as fp32_exact.
struct tf32 {};
///@}

/// The fastest measured tile for a GPU and a head size.
struct automatic_tile {};

/// The head size of q and k, and that of v and o if it differs: `attention_forward<head_sizes<192, 128>>(…)`.
template <int... Sizes>
struct head_sizes {};

namespace detail {

template <int HeadSize, int HeadSizeV, int64 MostHeadSize = attention_limits::head_size>
GIWA_HOST_DEVICE constexpr void require_head_sizes() {
  static_assert(
      HeadSize >= 1 && HeadSizeV >= 1 && HeadSize <= MostHeadSize && HeadSizeV <= attention_limits::head_size,
      "giwa::attention_forward: head sizes must be from 1 to 512; that of q and k in attention_cached from 1 to "
      "576.");
}

/// The two numbers of head_sizes.
template <class Sizes>
struct head_size_pair {
  static_assert(!stdlib::same_as<Sizes, Sizes>,
                "giwa: the first template argument of a call of attention is a head size, attention_forward<128>, or "
                "that of q and k and that of v and o, attention_forward<giwa::head_sizes<192, 128>>; "
                "giwa::choose_head_size<64, 128>(...) chooses one that is known at run time.");
  static constexpr int k = 1, v = 1;
};
template <int HeadSize>
struct head_size_pair<head_sizes<HeadSize>> {
  static constexpr int k = HeadSize, v = HeadSize;
};
template <int HeadSize, int HeadSizeV>
struct head_size_pair<head_sizes<HeadSize, HeadSizeV>> {
  static constexpr int k = HeadSize, v = HeadSizeV;
};

template <class Tile>
inline constexpr bool is_attention_tile = stdlib::same_as<Tile, automatic_tile>;
template <int Rows, int Columns>
inline constexpr bool is_attention_tile<tile_shape<Rows, Columns>> = true;
template <class Accuracy>
inline constexpr bool is_fp32_accuracy =
    stdlib::same_as<Accuracy, fp32> || stdlib::same_as<Accuracy, fp32_exact> || stdlib::same_as<Accuracy, tf32>;
/// What selects the kernels of a stream: the tile, or the accuracy if it is not the default.
template <class Accuracy, class Tile>
using kernel_choice = stdlib::conditional_t<stdlib::same_as<Accuracy, fp32>, Tile, Accuracy>;

/// Where a call runs: a stream, or anything that converts to one, or the host.
template <class Where>
concept attention_place = stdlib::same_as<Where, host_t> || stdlib::convertible_to<const Where&, cudaStream_t>;

/// In the place of a stream: the call is checked and prepared, and not launched.
template <class Prepared>
struct plan_target {
  Prepared& prepared;
};
template <class Where>
inline constexpr bool is_plan_target = false;
template <class Prepared>
inline constexpr bool is_plan_target<plan_target<Prepared>> = true;
/// Where the kernels of a call go: a stream, or a plan.
///@{
template <class Where>
cudaStream_t target_of(const Where& where) {
  return static_cast<cudaStream_t>(where);
}
template <class Prepared>
plan_target<Prepared> target_of(const plan_target<Prepared>& plan) {
  return plan;
}
///@}

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
  constexpr bool runs_somewhere = requires { requires attention_place<Where>; };
  static_assert(
      HasHeadSize,
      "giwa::attention_forward: the head size is a template argument: attention_forward<128>(stream, q, k, v, o); "
      "giwa::choose_head_size<64, 128>(...) chooses one that is known at run time. nvcc 12.4 and 12.5 lose it where "
      "the call does not begin with giwa::.");
  static_assert(
      !HasHeadSize || runs_somewhere,
      "giwa::attention_forward: pass a stream or giwa::host as the first argument: cudaStream_t{} is the default "
      "stream, giwa::throw_if_failed(s) the stream of a result.");
  static_assert(
      !HasHeadSize || !runs_somewhere || !pointers,
      "giwa::attention_forward: q, k, v and o must be views, not pointers: giwa::tensor_view<const giwa::fp16, 4> "
      "q(pointer, {batch, queries, heads, head_size}).");
  constexpr bool explained = !HasHeadSize || !runs_somewhere || pointers;
  static_assert(explained || !has_sequences,
                "giwa::attention_forward: giwa::sequences is a member of the options: (stream, q, k, v, o, "
                "{.sequences = sequences}).");
  static_assert(
      explained || has_sequences,
      "giwa::attention_forward: the arguments are (stream, q, k, v, o, mask, score, options), with q, k, v and o "
      "giwa::tensor_view of one rank, 4 or 3, and the last three optional: options may come right after o.");
}

}  // namespace detail

/// Calls `call` with the head size `head_size` as a constant, if it is in the list, for calls whose head size is known at
/// run time: `choose_head_size<64, 128>(q.extent(3), [&](auto head_size) { return attention_forward<head_size>(stream, q,
/// k, v, o); })`. Every size of the list is compiled. Returns what the call returns, a status, or the error that the head
/// size is not in the list.
template <int... Sizes, class Call>
status choose_head_size(int64 head_size, const Call& call) {
  static_assert(sizeof...(Sizes) > 0, "giwa::choose_head_size: the list of head sizes is empty.");
  status s = status::invalid("q", "the head size is not in the list that this call was compiled for");
  static_cast<void>(((head_size == Sizes && (s = call(stdlib::integral_constant<int, Sizes>{}), true)) || ...));
  return s;
}

}  // namespace giwa::inline GIWA_ABI

#endif
