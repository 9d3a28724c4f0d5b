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
      "giwa::attention_backward: the head size is a template argument: attention_backward<128>(stream, ...); "
      "giwa::choose_head_size<64, 128>(...) chooses one that is known at run time. nvcc 12.4 and 12.5 lose it where "
      "the call does not begin with giwa::.");
  static_assert(!HasHeadSize || runs_somewhere,
                "giwa::attention_backward: pass a stream or giwa::host as the first argument: cudaStream_t{} is the "
                "default stream, giwa::throw_if_failed(s) the stream of a result.");
  static_assert(!HasHeadSize || !runs_somewhere || !pointers,
                "giwa::attention_backward: tensors must be views, not pointers: giwa::tensor_view<const giwa::fp16, 4> "
                "q(pointer, {batch, queries, heads, head_size}).");
  constexpr bool explained = !HasHeadSize || !runs_somewhere || pointers;
  constexpr bool has_sequences = (stdlib::same_as<Rest, sequences> || ... || false);
  static_assert(explained || !has_sequences,
                "giwa::attention_backward: giwa::sequences is a member of the options: (stream, q, k, v, o, dout, dq, "
                "dk, dv, {.lse = lse, .sequences = sequences}).");
  constexpr bool has_lse = views_of_rank<4, Rest...> == 8 && views_of_rank<3, Rest...> == 1;
  static_assert(explained || has_sequences || !has_lse,
                "giwa::attention_backward: lse is a member of the options: (stream, q, k, v, o, dout, dq, dk, dv, "
                "{.lse = lse}).");
  constexpr bool other_options = (stdlib::same_as<Rest, attention_options> || ... || false);
  static_assert(explained || has_sequences || has_lse || !other_options,
                "giwa::attention_backward: the options are giwa::attention_backward_options, not "
                "giwa::attention_options.");
  static_assert(
      explained || has_sequences || has_lse || other_options,
      "giwa::attention_backward: the arguments are (stream, q, k, v, o, dout, dq, dk, dv, mask, score, options), with "
      "giwa::tensor_view of one rank, 4 or 3, and the last three optional: options may come right after dv.");
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
