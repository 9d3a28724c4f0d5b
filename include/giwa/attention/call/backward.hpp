// SPDX-License-Identifier: MIT
// attention_backward: the call in all its forms, on a stream or on the CPU.
#ifndef GIWA_ATTENTION_CALL_BACKWARD_HPP
#define GIWA_ATTENTION_CALL_BACKWARD_HPP

#include <giwa/attention/call/backward_explain_call.hpp>
#include <giwa/attention/call/forward.hpp>
#include <giwa/attention/problem/backward_checks.hpp>
#include <giwa/attention/problem/score_gradient.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <int HeadSize, int HeadSizeV>
struct host_backward;  // defined by <giwa/host.hpp>

inline namespace GIWA_ARCH_TAG {
template <int HeadSize, int HeadSizeV, class How>
struct stream_backward;  // defined by <giwa/attention_backward.cuh>

template <int HeadSize, int HeadSizeV, class How = automatic_tile, class Where, class T, class O, class G, class Mask,
          class Score>
status run_backward(const Where& where, const backward_views<T, O, G>& views, const Mask& mask, const Score& score,
                    const attention_backward_options& options) {
  static_assert(
      !stdlib::same_as<Mask, attention_backward_options> && !stdlib::same_as<Score, attention_backward_options>,
      "giwa::attention_backward: the options come after the mask and the score modifier: (stream, q, k, v, o, "
      "lse, dout, dq, dk, dv, mask, giwa::plain_score{}, options).");
  static_assert(
      stdlib::same_as<How, automatic_tile> || (is_fp32_accuracy<How> && stdlib::same_as<T, fp32>),
      "giwa::attention_backward: giwa::fp32, fp32_exact and tf32 say how tensors of fp32 are multiplied; other "
      "tensors, and tiles, have no such choice.");
  require_mask_and_score<Mask, Score>();
  require_head_sizes<HeadSize, HeadSizeV>();
  static_assert(has_slope<Score>,
                "giwa::attention_backward: this score modifier gives no slope: template its operator() on the number, "
                "template <class Number> Number operator()(Number score, giwa::attention_coord c) const, or add "
                "giwa::dual<float> value_and_slope(float, giwa::attention_coord) const.");
  require_parameter_slopes<Score>();
  if constexpr (drops_weights<Score>)
    if (score.probability() == 0 && score.check_numbers().ok())
      return run_backward<HeadSize, HeadSizeV, How>(where, views, mask, score.score, options);
  if (const status s = check_backward(views, mask, score, options, HeadSize, HeadSizeV); !s.ok()) return s;
  constexpr bool on_host = stdlib::same_as<Where, host_t>;
  if constexpr (!on_host)
    if (const status s = check_backward_workspace(views, score, options); !s.ok()) return s;
  if (views.in.q.extent(2) == 0) return {};
  const auto params = params_of(views, mask, score, options);
  if constexpr (on_host) {
    static_assert(defined<host_backward<HeadSize, HeadSizeV>>,
                  "giwa::attention_backward(giwa::host, ...) needs #include <giwa/host.hpp>.");
    return host_backward<HeadSize, HeadSizeV>::run(params);
  } else {
    static_assert(
        defined<stream_backward<HeadSize, HeadSizeV, How>>,
        "giwa::attention_backward on a stream needs #include <giwa/attention_backward.cuh>, in a file that nvcc "
        "compiles.");
    return stream_backward<HeadSize, HeadSizeV, How>::run(static_cast<cudaStream_t>(where), params);
  }
}
}  // namespace GIWA_ARCH_TAG

template <class Queries, class Keys, class Values, class O, class DO, class DQ, class DK, class DV, int Rank>
GIWA_HOST_DEVICE constexpr auto views_of(const sequences& packed, const tensor_view<Queries, Rank>& q,
                                         const tensor_view<Keys, Rank>& k, const tensor_view<Values, Rank>& v,
                                         const tensor_view<O, Rank>& o, const tensor_view<const float, 3>& lse,
                                         const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                                         const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv) {
  // In this function, so that the sentences come before the errors of the conversions below.
  using element = stdlib::remove_const_t<Queries>;
  using output = stdlib::remove_const_t<O>;
  static_assert(stdlib::same_as<element, stdlib::remove_const_t<Keys>> &&
                    stdlib::same_as<element, stdlib::remove_const_t<Values>>,
                "giwa::attention_backward: q, k and v must have one element type.");
  static_assert(stdlib::same_as<output, stdlib::remove_const_t<DO>>,
                "giwa::attention_backward: dout must have the element type of o.");
  static_assert(!stdlib::is_const_v<DQ> && !stdlib::is_const_v<DK> && !stdlib::is_const_v<DV>,
                "giwa::attention_backward: dq, dk and dv are written, so their elements must not be const.");
  static_assert(stdlib::same_as<stdlib::remove_const_t<DQ>, stdlib::remove_const_t<DK>> &&
                    stdlib::same_as<stdlib::remove_const_t<DQ>, stdlib::remove_const_t<DV>>,
                "giwa::attention_backward: dq, dk and dv must have one element type; one that is not computed is an "
                "empty view of it.");
  static_assert(
      attention_element<element> && attention_element<output> && attention_element<stdlib::remove_const_t<DQ>>,
      "giwa::attention_backward: elements must be giwa::fp16, bf16 or fp32.");
  const auto wide = [](const auto& x) { return in_four_dimensions(x); };
  return backward_views<element, output, DQ>{
      {wide(q), wide(k), wide(v), wide(o), packed}, lse, wide(dout), wide(dq), wide(dk), wide(dv)};
}

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// Computes the gradients of attention_forward: dq, dk and dv from dout, the gradient of a loss with respect to o.
///
/// With z = scale q k^T, y = score(z), P = e^(y - lse) where the mask keeps the score and 0 elsewhere:
///   delta = sum of dout o over a row of o, minus dlse     dv = P^T dout     dP = dout v^T
///   dy = P (dP - delta)      dz = dy score'(z)      dq = scale dz k      dk = scale dz^T q
///   dsink = minus the sum of e^(sink - lse) delta over all rows of a head
/// A row whose lse is below -2^24 counts as one without keys, P = 0, if there is a score modifier: a bias of -1e9 masks it.
///
/// Template arguments: the head size of q and k and, if it differs, that of v and o, each 1 to 512. head_sizes<64, 128>
/// instead chooses one of the list at run time. After them, for tensors of fp32, fp32, fp32_exact or tf32 as in
/// attention_forward: attention_backward<128, tf32>(…). fp32 and tf32 run on tensor cores up to a head size of 128 on Hopper
/// with backward_workspace_bytes(), elsewhere as fp32_exact.
///
/// Parameters, with the shapes of attention_forward:
///   - where: a stream of the current device, or giwa::host
///   - q, k, v, o: the inputs and the result of attention_forward
///   - lse: what attention_forward wrote there, fp32, (batch, heads, queries); packed: (1, heads, all queries)
///   - dout: like o, of the same element type
///   - dq, dk, dv: like q, k and v, of one element type, fp16, bf16 or fp32; written. An empty view is not computed:
///     frozen queries, or frozen keys and values, cost nothing
///   - mask, score: the same objects as in attention_forward. A score modifier must give its slope (score_modifier). One
///     with a member `void gradient(float dy, attention_coord c) const` receives dy of each score that is kept, once;
///     see bias_with_gradient, and gradient_sharing for elements that several scores have. One with
///     `static constexpr int parameters = n` has n numbers for each head, whose gradients the call sums:
///     `void parameter_slopes(float score, attention_coord c, float (&slopes)[n]) const` gives the derivatives of the
///     modified score, and the member `tensor_view<float, 2> parameter_gradients`, (heads, n), is written; see
///     alibi_with_gradient
///   - options: attention_backward_options
///
/// A kv head's dk and dv are sums over the heads of q that read it; those of keys that several sequences read
/// (sequences::k_batch_index) are sums over the sequences. Rows that belong to no sequence are not written. A gradient
/// of a row that sees no key, or that no query sees, is 0. Sums are in fp32 and, without `any_order`, in a fixed order:
/// the same call gives the same bits, and the bits of a row depend on the rows that it is a function of and on the
/// kernels that compute it.
///
/// Values that are masked for a pair of a query and a key, or outside its sequence, do not affect its terms, NaN
/// included. A NaN that is not masked reaches the gradients that it is a term of: one in q or k makes the row's dq NaN, and
/// the dk and dv of all keys that the row meets. On a GPU one in dout may make all columns of the dv of these keys NaN.
///
/// On a stream the call is asynchronous, allocates nothing and may be captured in a graph; options.workspace is required.
/// On giwa::host all memory is host memory, and the call returns when the gradients are written.
///
/// Errors are returned as a status with the argument, the limit and the value seen, and nothing is written: sizes that
/// do not match, no lse, a workspace that is too small, a gradient that overlaps an input or another gradient,
/// accumulation into 16 bits, and the errors of attention_forward.
///
/// Source: Dao et al. 2022, "FlashAttention", algorithm 4, with delta as in Dao 2023, "FlashAttention-2".
/// Example: `attention_backward<128>(stream, q, k, v, o, lse, dout, dq, dk, dv, causal{}, {}, {.workspace = workspace})`.
template <int HeadSize, class How = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, class Lse, class DO, class DQ, class DK, class DV, class Mask = full,
          class Score = plain_score>
  requires(stdlib::same_as<stdlib::remove_const_t<Lse>, float>)
status attention_backward(const Where& where, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                          const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const tensor_view<Lse, 3>& lse,
                          const tensor_view<DO, 4>& dout, const tensor_view<DQ, 4>& dq, const tensor_view<DK, 4>& dk,
                          const tensor_view<DV, 4>& dv, const Mask& mask = {}, const Score& score = {},
                          const attention_backward_options& options = {}) {
  return detail::run_backward<HeadSize, HeadSize, How>(where, detail::views_of({}, q, k, v, o, lse, dout, dq, dk, dv),
                                                       mask, score, options);
}
/// Computes the gradients for sequences of different lengths (see `sequences`): packed tensors of rank 3, or of rank 4
/// with lengths, as attention_forward takes them.
template <int HeadSize, class How = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, class Lse, class DO, class DQ, class DK, class DV, int Rank, class Mask = full,
          class Score = plain_score>
  requires(stdlib::same_as<stdlib::remove_const_t<Lse>, float>)
status attention_backward(const Where& where, const sequences& packed, const tensor_view<Queries, Rank>& q,
                          const tensor_view<Keys, Rank>& k, const tensor_view<Values, Rank>& v,
                          const tensor_view<O, Rank>& o, const tensor_view<Lse, 3>& lse,
                          const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                          const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv, const Mask& mask = {},
                          const Score& score = {}, const attention_backward_options& options = {}) {
  if (const status s = detail::check_sequences(packed, q); !s.ok()) return s;
  return detail::run_backward<HeadSize, HeadSize, How>(
      where, detail::views_of(packed, q, k, v, o, lse, dout, dq, dk, dv), mask, score, options);
}
/// With a different head size of v and o: `attention_backward<192, 128>(…)`.
///@{
template <int HeadSize, int HeadSizeV, class How = automatic_tile, detail::attention_place Where, class Queries,
          class Keys, class Values, class O, class Lse, class DO, class DQ, class DK, class DV, class Mask = full,
          class Score = plain_score>
  requires(stdlib::same_as<stdlib::remove_const_t<Lse>, float>)
status attention_backward(const Where& where, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                          const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const tensor_view<Lse, 3>& lse,
                          const tensor_view<DO, 4>& dout, const tensor_view<DQ, 4>& dq, const tensor_view<DK, 4>& dk,
                          const tensor_view<DV, 4>& dv, const Mask& mask = {}, const Score& score = {},
                          const attention_backward_options& options = {}) {
  return detail::run_backward<HeadSize, HeadSizeV, How>(where, detail::views_of({}, q, k, v, o, lse, dout, dq, dk, dv),
                                                        mask, score, options);
}
template <int HeadSize, int HeadSizeV, class How = automatic_tile, detail::attention_place Where, class Queries,
          class Keys, class Values, class O, class Lse, class DO, class DQ, class DK, class DV, int Rank,
          class Mask = full, class Score = plain_score>
  requires(stdlib::same_as<stdlib::remove_const_t<Lse>, float>)
status attention_backward(const Where& where, const sequences& packed, const tensor_view<Queries, Rank>& q,
                          const tensor_view<Keys, Rank>& k, const tensor_view<Values, Rank>& v,
                          const tensor_view<O, Rank>& o, const tensor_view<Lse, 3>& lse,
                          const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                          const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv, const Mask& mask = {},
                          const Score& score = {}, const attention_backward_options& options = {}) {
  if (const status s = detail::check_sequences(packed, q); !s.ok()) return s;
  return detail::run_backward<HeadSize, HeadSizeV, How>(
      where, detail::views_of(packed, q, k, v, o, lse, dout, dq, dk, dv), mask, score, options);
}
///@}

/// With `attention_backward<head_sizes<64, 128>>(…)` the head size of all tensors is known at run time and must be in
/// the list, all of which is compiled.
template <class Sizes, class How = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, class Lse, class DO, class DQ, class DK, class DV, class Mask = full,
          class Score = plain_score>
  requires(detail::is_head_sizes<Sizes> && stdlib::same_as<stdlib::remove_const_t<Lse>, float>)
status attention_backward(const Where& where, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                          const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const tensor_view<Lse, 3>& lse,
                          const tensor_view<DO, 4>& dout, const tensor_view<DQ, 4>& dq, const tensor_view<DK, 4>& dk,
                          const tensor_view<DV, 4>& dv, const Mask& mask = {}, const Score& score = {},
                          const attention_backward_options& options = {}) {
  return detail::choice_of_size<Sizes>::run(q.extent(3), [&](auto size) {
    return attention_backward<decltype(size)::value, decltype(size)::value, How>(where, q, k, v, o, lse, dout, dq, dk,
                                                                                 dv, mask, score, options);
  });
}
/// The same for sequences of different lengths.
template <class Sizes, class How = automatic_tile, detail::attention_place Where, class Queries, class Keys,
          class Values, class O, class Lse, class DO, class DQ, class DK, class DV, int Rank, class Mask = full,
          class Score = plain_score>
  requires(detail::is_head_sizes<Sizes> && stdlib::same_as<stdlib::remove_const_t<Lse>, float>)
status attention_backward(const Where& where, const sequences& packed, const tensor_view<Queries, Rank>& q,
                          const tensor_view<Keys, Rank>& k, const tensor_view<Values, Rank>& v,
                          const tensor_view<O, Rank>& o, const tensor_view<Lse, 3>& lse,
                          const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                          const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv, const Mask& mask = {},
                          const Score& score = {}, const attention_backward_options& options = {}) {
  return detail::choice_of_size<Sizes>::run(q.extent(Rank - 1), [&](auto size) {
    return attention_backward<decltype(size)::value, decltype(size)::value, How>(where, packed, q, k, v, o, lse, dout,
                                                                                 dq, dk, dv, mask, score, options);
  });
}

/// Explains a call that no other overload takes: it does not compile, and a static_assert says what to change.
///@{
template <int HeadSize, int HeadSizeV = HeadSize, class... Arguments>
  requires(detail::may_explain<Arguments...>)
status attention_backward(const Arguments&...) {
  detail::explain_backward_call<true, Arguments...>();
  return {};
}
template <class Sizes = void, class... Arguments>
  requires(detail::may_explain<Arguments...>)
status attention_backward(const Arguments&...) {
  detail::explain_backward_call<detail::is_head_sizes<Sizes>, Arguments...>();
  return {};
}
// Braces have no type, and become options where they stand too early.
template <int HeadSize, int HeadSizeV = HeadSize, class Where, class One, class Two, class Three, class Four,
          class Five, class Six, class Seven, class Eight, class Nine, class Ten = attention_backward_options,
          class Eleven = attention_backward_options, class Twelve = attention_backward_options,
          class Thirteen = attention_backward_options>
  requires(
      detail::may_explain<Where, One, Two, Three, Four, Five, Six, Seven, Eight, Nine, Ten, Eleven, Twelve, Thirteen>)
status attention_backward(const Where&, const One&, const Two&, const Three&, const Four&, const Five&, const Six&,
                          const Seven&, const Eight&, const Nine&, const Ten&, const Eleven& = {}, const Twelve& = {},
                          const Thirteen& = {}) {
  detail::explain_backward_call<true, Where, One, Two, Three, Four, Five, Six, Seven, Eight, Nine, Ten, Eleven, Twelve,
                                Thirteen>();
  return {};
}
template <class Sizes, class Where, class One, class Two, class Three, class Four, class Five, class Six, class Seven,
          class Eight, class Nine, class Ten = attention_backward_options, class Eleven = attention_backward_options,
          class Twelve = attention_backward_options, class Thirteen = attention_backward_options>
  requires(
      detail::may_explain<Where, One, Two, Three, Four, Five, Six, Seven, Eight, Nine, Ten, Eleven, Twelve, Thirteen>)
status attention_backward(const Where&, const One&, const Two&, const Three&, const Four&, const Five&, const Six&,
                          const Seven&, const Eight&, const Nine&, const Ten&, const Eleven& = {}, const Twelve& = {},
                          const Thirteen& = {}) {
  detail::explain_backward_call<detail::is_head_sizes<Sizes>, Where, One, Two, Three, Four, Five, Six, Seven, Eight,
                                Nine, Ten, Eleven, Twelve, Thirteen>();
  return {};
}
///@}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
