// SPDX-License-Identifier: MIT
// attention_backward: the call in all its forms, on a stream or on the CPU.
#ifndef GIWA_ATTENTION_CALL_BACKWARD_HPP
#define GIWA_ATTENTION_CALL_BACKWARD_HPP

#include <giwa/attention/call/backward_explain_call.hpp>
#include <giwa/attention/call/call_plan.hpp>
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
          class Score, class Options>
status run_backward(const Where& where, const backward_views<T, O, G>& views, const Mask& mask, const Score& score,
                    const Options& options) {
  require_mask_and_plain_queries<Mask, Score>();
  require_head_sizes<HeadSize, HeadSizeV>();
  static_assert(has_slope<Score>,
                "giwa::attention_backward: this score modifier gives no slope: template its operator() on the number, "
                "template <class Number> Number operator()(Number score, giwa::attention_coord c) const, or add "
                "giwa::dual<float> value_and_slope(float, giwa::attention_coord) const.");
  require_parameter_slopes<Score>();
  if constexpr (drops_weights<Score> && !is_plan_target<Where>)  // a plan has one type of score modifier
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
    return stream_backward<HeadSize, HeadSizeV, How>::run(target_of(where), params);
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

inline namespace GIWA_ARCH_TAG {
/// The call, with all of its template arguments.
template <int HeadSize, int HeadSizeV, class Accuracy, class Where, class Queries, class Keys, class Values, class O,
          class DO, class DQ, class DK, class DV, int Rank, class Mask, class Score>
status backward_call(const Where& where, const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                     const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o,
                     const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                     const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv, const Mask& mask,
                     const Score& score, const attention_backward_options& options) {
  static_assert(
      is_fp32_accuracy<Accuracy>,
      "giwa::attention_backward: after the head size comes the accuracy, giwa::fp32, fp32_exact or tf32; there is no "
      "choice of a tile.");
  static_assert(
      stdlib::same_as<Accuracy, fp32> || stdlib::same_as<stdlib::remove_const_t<Queries>, fp32>,
      "giwa::attention_backward: fp32_exact and tf32 say how tensors of fp32 are multiplied; other tensors have "
      "no such choice.");
  const last_arguments last(mask, score, options);
  const auto& given = last.options();
  const auto views = views_of(given.sequences, q, k, v, o, given.lse, dout, dq, dk, dv);
  status s = last.check();
  if (s.ok()) s = check_sequences(given.sequences, q);
  if (!s.ok()) return s;
  return run_backward<HeadSize, HeadSizeV, kernel_choice<Accuracy, automatic_tile>>(where, views, last.mask(),
                                                                                    last.score(), given);
}
}  // namespace GIWA_ARCH_TAG

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
/// Template arguments:
///   - HeadSize: the head size of q, k, v and o, 1 to 512; with `head_sizes<192, 128>` that of q and k, and that of v and o.
///     choose_head_size() chooses one that is known at run time
///   - Accuracy: fp32, fp32_exact or tf32, for the products of fp32 tensors. fp32 and tf32 run on tensor cores up to a head size
///     of 128 on Hopper with workspace_bytes(), elsewhere as fp32_exact
///
/// Parameters, with the shapes of attention_forward:
///   - where: a stream of the current device, or giwa::host
///   - q, k, v, o: the inputs and the result of attention_forward
///   - dout: like o, of the same element type
///   - dq, dk, dv: like q, k and v, of one element type, fp16, bf16 or fp32; written. An empty view is not computed:
///     frozen queries, or frozen keys and values, cost nothing
///   - mask, score: the same objects as in attention_forward. A score modifier must give its slope (score_modifier). One with a
///     member `void gradient(float dy, attention_coord c) const` receives dy of each score that is kept, once; see
///     bias_with_gradient, and gradient_sharing for elements that several scores have. One with `static constexpr int
///     parameters = n` has n numbers for each head, whose gradients the call sums: `void parameter_slopes(float score,
///     attention_coord c, float (&slopes)[n]) const` gives the derivatives of the modified score, and the member
///     `tensor_view<float, 2> parameter_gradients`, (heads, n), is written; see alibi_with_gradient
///   - options: lse, which is required, workspace, and others (attention_backward_options); also in the place of the mask or
///     of the score modifier, for calls that have none
///
/// A kv head's dk and dv are sums over the heads of q that read it; those of keys that several sequences read
/// (sequences::k_batch_index) are sums over the sequences. Rows that belong to no sequence are not written. A gradient of a row
/// that sees no key, or that no query sees, is 0. Sums are in fp32 and, without `any_order`, in a fixed order: the same call
/// gives the same bits, and the bits of a row depend on the rows that it is a function of and on the kernels that compute it;
/// with `split_heads` those of dk and dv depend on the sizes of the call too.
///
/// Values that are masked for a pair of a query and a key, or outside its sequence, do not affect its terms, NaN included. A
/// NaN that is not masked reaches the gradients that it is a term of: one in q or k makes the row's dq NaN, and the dk and dv
/// of all keys that the row meets. On a GPU one in dout may make all columns of the dv of these keys NaN.
///
/// On a stream the call is asynchronous, allocates nothing and may be captured in a graph; options.workspace is required.
/// On giwa::host all memory is host memory, and the call returns when the gradients are written.
///
/// Errors are returned as a status with the argument, the limit and the value seen, and nothing is written: sizes that do not
/// match, no lse, a workspace that is too small, a gradient that overlaps an input or another gradient, accumulation into 16
/// bits, and the errors of attention_forward.
///
/// Source: Dao et al. 2022, "FlashAttention", algorithm 4, with delta as in Dao 2023, "FlashAttention-2".
/// Example: `attention_backward<128>(stream, q, k, v, o, dout, dq, dk, dv, causal{}, {.lse = lse, .workspace = workspace})`.
template <int HeadSize, class Accuracy = fp32, detail::attention_place Where, class Queries, class Keys, class Values,
          class O, class DO, class DQ, class DK, class DV, int Rank, class Mask = attention_backward_options,
          class Score = attention_backward_options>
status attention_backward(const Where& where, const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                          const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o,
                          const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                          const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv, const Mask& mask = {},
                          const Score& score = {}, const attention_backward_options& options = {}) {
  return detail::backward_call<HeadSize, HeadSize, Accuracy>(where, q, k, v, o, dout, dq, dk, dv, mask, score, options);
}
/// With two head sizes, `attention_backward<head_sizes<192, 128>>(…)`, the second one is that of v and o.
template <class Sizes, class Accuracy = fp32, detail::attention_place Where, class Queries, class Keys, class Values,
          class O, class DO, class DQ, class DK, class DV, int Rank, class Mask = attention_backward_options,
          class Score = attention_backward_options>
status attention_backward(const Where& where, const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                          const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o,
                          const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                          const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv, const Mask& mask = {},
                          const Score& score = {}, const attention_backward_options& options = {}) {
  using pair = detail::head_size_pair<Sizes>;
  return detail::backward_call<pair::k, pair::v, Accuracy>(where, q, k, v, o, dout, dq, dk, dv, mask, score, options);
}

/// Explains a call that no other overload takes: it does not compile, and a static_assert says what to change. Arguments
/// in braces have no type, and become options; calls of before 0.3.0 have more of them.
template <int HeadSize = 0, class Accuracy = fp32, class Where = attention_backward_options,
          class Queries = attention_backward_options, class Keys = attention_backward_options,
          class Values = attention_backward_options, class O = attention_backward_options,
          class DO = attention_backward_options, class DQ = attention_backward_options,
          class DK = attention_backward_options, class DV = attention_backward_options,
          class Mask = attention_backward_options, class Score = attention_backward_options,
          class Options = attention_backward_options, class Other = attention_backward_options,
          class Another = attention_backward_options, class... More>
  requires(detail::may_explain<Where, Queries, Keys, Values, O, DO, DQ, DK, DV, Mask, Score, Options, Other, Another,
                               More...>)
status attention_backward(const Where& = {}, const Queries& = {}, const Keys& = {}, const Values& = {}, const O& = {},
                          const DO& = {}, const DQ& = {}, const DK& = {}, const DV& = {}, const Mask& = {},
                          const Score& = {}, const Options& = {}, const Other& = {}, const Another& = {},
                          const More&...) {
  detail::explain_backward_call<(HeadSize > 0), Where, Queries, Keys, Values, O, DO, DQ, DK, DV, Mask, Score, Options,
                                Other, Another, More...>();
  return {};
}

/// Prepares an attention_backward call on the current GPU, with its template arguments, for `plan.launch(stream)` any number of
/// times. Launches nothing; may be captured. Errors: those of attention_backward(), and dropout with a probability of 0.
/// Parameters:
///   - q, k, v, o, dout, dq, dk, dv, mask, score, options: of the call; the memory must be there at each launch
///@{
template <class Sizes, class Accuracy = fp32, class Queries, class Keys, class Values, class O, class DO, class DQ,
          class DK, class DV, int Rank, class Mask = attention_backward_options,
          class Score = attention_backward_options>
auto make_attention_plan(const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                         const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o,
                         const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                         const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv, const Mask& mask = {},
                         const Score& score = {}, const attention_backward_options& options = {}) {
  using pair = detail::head_size_pair<Sizes>;
  using kernels = detail::stream_backward<pair::k, pair::v, detail::kernel_choice<Accuracy, automatic_tile>>;
  static_assert(
      detail::defined<kernels>,
      "giwa::make_attention_plan for gradients needs #include <giwa/attention_backward.cuh>, in a file that nvcc "
      "compiles.");
  using params = detail::backward_params<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<O>, DQ,
                                         detail::argument_or<Mask, attention_backward_options, full>,
                                         detail::argument_or<Score, attention_backward_options, plain_score>>;
  using plan = call_plan<typename kernels::template prepared<params>>;
  return plan::make([&](const auto& target) {
    if constexpr (detail::drops_weights<Score>)
      if (score.probability() == 0)
        return status::invalid("dropout", "a plan with dropout needs a probability above 0: leave dropout out");
    return detail::backward_call<pair::k, pair::v, Accuracy>(target, q, k, v, o, dout, dq, dk, dv, mask, score,
                                                             options);
  });
}
template <int HeadSize, class Accuracy = fp32, class Queries, class Keys, class Values, class O, class DO, class DQ,
          class DK, class DV, int Rank, class Mask = attention_backward_options,
          class Score = attention_backward_options>
auto make_attention_plan(const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                         const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o,
                         const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                         const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv, const Mask& mask = {},
                         const Score& score = {}, const attention_backward_options& options = {}) {
  return make_attention_plan<head_sizes<HeadSize>, Accuracy>(q, k, v, o, dout, dq, dk, dv, mask, score, options);
}
///@}

}  // namespace GIWA_ARCH_TAG

/// Returns the bytes of workspace with which attention_backward() is fastest on a stream: those of least_workspace_bytes(), and
/// what the kernels on tensor cores need. For 16-bit tensors and head sizes up to 256, whose gradients one kernel computes,
/// that is dq in fp32, its rows and columns rounded up to whole tiles of 64 or 128. For fp32 and head sizes up to 128 it is a
/// copy of q, k, v and dout as split fp16, rows rounded up to 64 columns, and 4 bytes a row. With any_order or split_heads also
/// fp32 sums of dk and dv, with which blocks share the query heads of a kv head where few kv heads would leave multiprocessors
/// of a GPU of 9.0 idle: at most 512 times 128 rows of k and v. Elsewhere any_order, unless packed, shares the queries that
/// read the last keys if there is no mask: at most 132 times 128 rows. The largest int64 where no 64-bit number holds the size,
/// 0 for sizes that the call refuses. Needs no GPU.
/// Example: `workspace_bytes(q, k, v, o, dout, dq, dk, dv, causal{}, {}, {.any_order = true}, {.capability = 90})`.
/// Parameters:
///   - q, k, v, o, dout, dq, dk, dv, mask, score, options: of the call. Sizes count, and no memory is read: pointers may be null
///   - gpu: leaves out what its kernels do not use: dq above 128 on 9.0 with TMA layouts, all of this on GPUs but 9.0 and 10.x
template <class Queries, class Keys, class Values, class O, class DO, class DQ, class DK, class DV, int Rank,
          class Mask = attention_backward_options, class Score = attention_backward_options>
GIWA_HOST_DEVICE constexpr int64 workspace_bytes(const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                                                 const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o,
                                                 const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
                                                 const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv,
                                                 const Mask& mask = {}, const Score& score = {},
                                                 const attention_backward_options& options = {},
                                                 const workspace_gpu& gpu = {}) {
  detail::require_last_arguments<attention_backward_options, Mask, Score>();
  const detail::last_arguments last(mask, score, options);
  const auto views = detail::views_of(last.options().sequences, q, k, v, o, last.options().lse, dout, dq, dk, dv);
  return detail::backward_workspace_bytes(detail::problem_of_sizes<Rank>(views.in), last.score(), gpu.capability,
                                          last.options().any_order, last.options().split_heads);
}
/// Returns the bytes that attention_backward() requires on a stream: 8, and 4 for each parameter of the score modifier, for each
/// row and head of q, rounded up to a multiple of 16, and 16.
/// Parameters:
///   - q, k, v, o, dout, dq, dk, dv, mask, score, options: as for workspace_bytes()
template <class Queries, class Keys, class Values, class O, class DO, class DQ, class DK, class DV, int Rank,
          class Mask = attention_backward_options, class Score = attention_backward_options>
GIWA_HOST_DEVICE constexpr int64 least_workspace_bytes(
    const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k, const tensor_view<Values, Rank>& v,
    const tensor_view<O, Rank>& o, const tensor_view<DO, Rank>& dout, const tensor_view<DQ, Rank>& dq,
    const tensor_view<DK, Rank>& dk, const tensor_view<DV, Rank>& dv, const Mask& mask = {}, const Score& score = {},
    const attention_backward_options& options = {}) {
  detail::require_last_arguments<attention_backward_options, Mask, Score>();
  const detail::last_arguments last(mask, score, options);
  const auto views = detail::views_of(last.options().sequences, q, k, v, o, last.options().lse, dout, dq, dk, dv);
  return detail::least_backward_workspace_bytes(detail::problem_of_sizes<Rank>(views.in), last.score());
}

}  // namespace giwa::inline GIWA_ABI

#endif
