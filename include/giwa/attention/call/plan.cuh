// SPDX-License-Identifier: MIT
// attention_plan: an attention_forward call that is checked and prepared once, and launched many times.
#ifndef GIWA_ATTENTION_CALL_PLAN_CUH
#define GIWA_ATTENTION_CALL_PLAN_CUH

#include <giwa/attention/call/call_plan.hpp>
#include <giwa/attention/choose/forward.cuh>

namespace giwa::inline GIWA_ABI {

/// New memory for a plan, of the sizes and strides that it was made with. Null keeps the memory of before.
template <class T, class O>
struct attention_pointers {
  const T* q = nullptr;  ///< queries
  const T* k = nullptr;  ///< keys
  const T* v = nullptr;  ///< values
  O* o = nullptr;        ///< the output
  /// Of the options that the plan was made with.
  ///@{
  float* lse = nullptr;
  const float* sinks = nullptr;
  unsigned char* workspace = nullptr;
  ///@}
  /// Of the sequences that the plan was made with.
  ///@{
  const int* q_offsets = nullptr;
  const int* k_offsets = nullptr;
  const int* q_lengths = nullptr;
  const int* k_lengths = nullptr;
  const int* k_batch_index = nullptr;
  ///@}
};

namespace detail {

/// Takes over the pointers that are not null. A plan that was made without one of the optional arrays gets none later:
/// its kernel may be another.
template <class T, class O>
status replace_pointers(attention_views<T, O>& views, attention_options& options, const attention_pointers<T, O>& to) {
  const auto view = [](auto& v, auto* data) {
    if (data != nullptr) v = {data, v.extents(), v.strides()};
  };
  view(views.q, to.q), view(views.k, to.k), view(views.v, to.v), view(views.o, to.o);
  status s;
  const auto optional = [&](bool given, bool had, const char* argument) {
    if (given && !had && s.ok())
      s = status::invalid(argument, "the plan was made without this array; make another plan");
    return given && had;
  };
  if (optional(to.lse != nullptr, options.lse.data() != nullptr, "lse")) view(options.lse, to.lse);
  if (optional(to.sinks != nullptr, options.sinks.data() != nullptr, "sinks")) view(options.sinks, to.sinks);
  if (optional(to.workspace != nullptr, options.workspace.extent(0) != 0, "workspace"))
    view(options.workspace, to.workspace);
  const auto array = [&](const int*& of, const int* data, const char* argument) {
    if (optional(data != nullptr, of != nullptr, argument)) of = data;
  };
  sequences& packed = views.packed;
  array(packed.q_offsets, to.q_offsets, "q_offsets"), array(packed.k_offsets, to.k_offsets, "k_offsets");
  array(packed.q_lengths, to.q_lengths, "q_lengths"), array(packed.k_lengths, to.k_lengths, "k_lengths");
  array(packed.k_batch_index, to.k_batch_index, "k_batch_index");
  return s;
}

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// A prepared attention_forward call: the arguments, checked, and the kernel with its parameters and tensor maps, for
/// the GPU that was current when make_attention_plan() made it. Owns no memory of a GPU, and refers to the tensors of
/// the call. May be copied. launch() may be called from several host threads at once.
template <class T, class O, int HeadSize, int HeadSizeV, class Tile, class Mask, class Score>
class attention_plan {
 public:
  /// No call: launch() fails.
  attention_plan() = default;

  /// Launches the call on a stream of the plan's GPU, which must be the current one. Gives the bits of
  /// attention_forward(). Asynchronous; allocates nothing; may be captured in a graph, which keeps the pointers of this
  /// launch. Launches on streams that do not wait for each other need a workspace each, if they have one.
  /// Errors: the plan is empty; another GPU is current; those of the runtime.
  status launch(cudaStream_t s) const {
    const status state = device_.check();
    return state.ok() ? prepared_.launch(s) : state;
  }

  /// Replaces pointers: `plan.rebind({.q = q, .o = o})`. Sizes, strides, mask, score modifier and kernel stay. Later
  /// launches use the new memory; those of before are not affected. Launches nothing.
  /// Errors: those of attention_forward() for the new pointers; an optional array that the plan was made without; an
  /// address that is not a multiple of 16 bytes, if the kernel uses TMA. After an error the plan is as before.
  status rebind(const attention_pointers<T, O>& to) {
    if (const status s = device_.check(); !s.ok()) return s;
    attention_plan next = *this;
    if (const status s = detail::replace_pointers(next.views_, next.options_, to); !s.ok()) return s;
    status s;  // stays so where there is nothing to compute
    prepared_.visit([&](const auto& prepared) { s = next.prepare(prepared.call().mask, prepared.call().score, true); });
    if (s.ok()) *this = next;
    return s;
  }

  /// What make_attention_plan() calls.
  static result<attention_plan> make(const detail::attention_views<T, O>& views, const Mask& mask, const Score& score,
                                     const attention_options& options) {
    detail::require_mask_and_plain_queries<Mask, Score>();
    detail::require_head_sizes<HeadSize, HeadSizeV>();
    if constexpr (detail::drops_weights<Score>)
      if (score.probability() == 0)
        return {{}, status::invalid("dropout", "a plan with dropout needs a probability above 0: leave dropout out")};
    const result<int> device = current_device();
    if (!device.ok()) return {{}, device.state};
    attention_plan plan;
    plan.views_ = views, plan.options_ = options, plan.device_ = {device.value};
    const status state = plan.prepare(mask, score, false);
    return {state.ok() ? plan : attention_plan{}, state};
  }

 private:
  status prepare(const Mask& mask, const Score& score, bool again) {
    if (const status s = detail::check_attention(views_, mask, score, options_, HeadSize, HeadSizeV); !s.ok()) return s;
    if (views_.o.size() == 0 || views_.problem().batch == 0) return {};
    const auto call = detail::params_of(views_, mask, score, options_);
    if (const status s = detail::check_pointers(call); !s.ok()) return s;
    return again ? prepared_.prepare_again(call) : prepared_.prepare(call);
  }

  detail::attention_views<T, O> views_{};
  attention_options options_{};
  detail::plan_device device_;
  detail::prepared_forward<T, O, HeadSize, HeadSizeV, Tile, Mask, Score> prepared_;
};

}  // namespace GIWA_ARCH_TAG

namespace detail::inline GIWA_ARCH_TAG {

/// The plan, with all template arguments of the call.
template <int HeadSize, int HeadSizeV, class Accuracy, class Tile, class Queries, class Keys, class Values, class O,
          int Rank, class Mask, class Score>
auto plan_call(const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
               const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o, const Mask& mask, const Score& score,
               const attention_options& options) {
  using element = stdlib::remove_const_t<Queries>;
  require_accuracy_and_tile<Accuracy, Tile, element>();
  using plan =
      attention_plan<element, O, HeadSize, HeadSizeV, kernel_choice<Accuracy, Tile>,
                     argument_or<Mask, attention_options, full>, argument_or<Score, attention_options, plain_score>>;
  const last_arguments last(mask, score, options);
  const sequences& packed = last.options().sequences;
  status s = last.check();
  if (s.ok()) s = check_sequences(packed, q);
  return s.ok() ? plan::make(views_of(q, k, v, o, packed), last.mask(), last.score(), last.options())
                : result<plan>{{}, s};
}

}  // namespace detail::inline GIWA_ARCH_TAG

inline namespace GIWA_ARCH_TAG {

/// Prepares an attention_forward call on the current GPU, with the arguments and template arguments of that function
/// except the stream: `auto plan = throw_if_failed(make_attention_plan<128>(q, k, v, o, causal{}));`, then
/// `plan.launch(stream)` any number of times. Launches nothing; may be called while a graph is captured. Errors: those of
/// attention_forward(), and dropout with a probability of 0.
/// Parameters:
///   - q, k, v, o, mask, score, options: of the call. The memory is not touched, and must be there at each launch
///@{
template <int HeadSize, class Accuracy = fp32, class Tile = automatic_tile, class Queries, class Keys, class Values,
          class O, int Rank, class Mask = attention_options, class Score = attention_options>
auto make_attention_plan(const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                         const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  return detail::plan_call<HeadSize, HeadSize, Accuracy, Tile>(q, k, v, o, mask, score, options);
}
template <class Sizes, class Accuracy = fp32, class Tile = automatic_tile, class Queries, class Keys, class Values,
          class O, int Rank, class Mask = attention_options, class Score = attention_options>
auto make_attention_plan(const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                         const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o, const Mask& mask = {},
                         const Score& score = {}, const attention_options& options = {}) {
  using pair = detail::head_size_pair<Sizes>;
  return detail::plan_call<pair::k, pair::v, Accuracy, Tile>(q, k, v, o, mask, score, options);
}
///@}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
