// SPDX-License-Identifier: MIT
// An error sentence for each call of attention_backward that no overload accepts.
#ifndef GIWA_ATTENTION_CALL_BACKWARD_EXPLAIN_CALL_HPP
#define GIWA_ATTENTION_CALL_BACKWARD_EXPLAIN_CALL_HPP

#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/problem/backward_options.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Fails to compile, with a sentence about the first error in arguments that no overload of attention_backward accepts.
template <bool HasHeadSize, class Where = void, class... Rest>
constexpr void explain_backward_call() {
  constexpr bool runs_somewhere = requires { requires attention_place<Where>; };
  constexpr bool pointers = (is_data_pointer<Rest> || ... || false);
  static_assert(
      HasHeadSize,
      "giwa::attention_backward: the head size is a template argument: attention_backward<128>(stream, ...), or "
      "attention_backward<giwa::head_sizes<64, 128>>(...) for sizes known at run time.");
  static_assert(!HasHeadSize || runs_somewhere,
                "giwa::attention_backward: pass a stream or giwa::host as the first argument: cudaStream_t{} is the "
                "default stream, giwa::throw_if_failed(s) the stream of a result.");
  static_assert(!HasHeadSize || !runs_somewhere || !pointers,
                "giwa::attention_backward: tensors must be views, not pointers: giwa::tensor_view<const giwa::fp16, 4> "
                "q(pointer, {batch, queries, heads, head_size}).");
  constexpr bool explained = !HasHeadSize || !runs_somewhere || pointers;
  constexpr bool packed = (stdlib::same_as<Rest, sequences> || ... || false);
  constexpr bool tensors =
      (views_of_rank<4, Rest...> == 8 && views_of_rank<3, Rest...> == 1) || (packed && views_of_rank<3, Rest...> == 9);
  constexpr bool options =
      tensors &&
      ((stdlib::same_as<Rest, attention_backward_options> || stdlib::same_as<Rest, attention_options>) || ... || false);
  static_assert(explained || !options,
                "giwa::attention_backward: options come after the mask and the score modifier: (stream, q, k, v, o, "
                "lse, dout, dq, dk, dv, giwa::full{}, giwa::plain_score{}, giwa::attention_backward_options{...}).");
  static_assert(
      explained || options,
      "giwa::attention_backward: the arguments are (stream, q, k, v, o, lse, dout, dq, dk, dv, mask, score, "
      "options), with lse giwa::tensor_view<float, 3>, the other tensors giwa::tensor_view of one rank (4, or 3 "
      "with giwa::sequences after the stream), and the last three optional.");
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
