// SPDX-License-Identifier: MIT
// How a call gets its kernels: an ordered list of candidates, of which the first that suits is prepared and launched.
#ifndef GIWA_ATTENTION_CHOOSE_CANDIDATES_CUH
#define GIWA_ATTENTION_CHOOSE_CANDIDATES_CUH

#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/choose/gpu.cuh>
#include <giwa/attention/problem/params.hpp>
#include <giwa/device/pointer.hpp>

#include <initializer_list>
#include <new>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// One way to compute a call. A candidate derives from this, replaces what differs, and adds
///   using prepared                             the launches with their parameters: status launch(cudaStream_t) const
///   static status make(void* to, call, gpu)    constructs `prepared` in place
struct candidate {
  static constexpr bool compiled = true;  // whether this file contains it
  static constexpr bool asks_gpu = true;  // whether runs_on() or make() reads the traits of the GPU
  /// Whether it computes a call, as far as the host can tell, or why not.
  template <class Call>
  static status suits(const Call&) {
    return {};
  }
  /// The current GPU, as cheaply as the candidate can ask.
  static result<gpu_traits> gpu() { return current_gpu(); }
  static bool runs_on(const gpu_traits&) { return true; }
};

/// Why a candidate leaves a call to the next one where no argument is at fault.
inline constexpr status fits_another_tile{status_code::not_supported, bound::none, 0,
                                          "the call fits another kernel better"};

/// Candidates, the best one first.
template <class... Candidates>
struct candidates {};

/// Those of `Rest` that this file contains, after `Found`.
template <class Found, class... Rest>
struct compiled_candidates {
  using type = Found;
};
template <class... Found, class First, class... Rest>
struct compiled_candidates<candidates<Found...>, First, Rest...>
    : compiled_candidates<stdlib::conditional_t<First::compiled, candidates<Found..., First>, candidates<Found...>>,
                          Rest...> {};

template <class List>
class first_candidate;

/// A call that is prepared once for the current GPU by the first candidate that suits, and launched any number of times.
/// Copied as bytes.
template <class... Candidates>
using prepared_call = first_candidate<typename compiled_candidates<candidates<>, Candidates...>::type>;

template <class... Candidates>
class first_candidate<candidates<Candidates...>> {
 public:
  /// Chooses and prepares. Launches nothing. Fails if no candidate suits, or if the one that does fails. Asks for the traits of
  /// the current GPU where the caller does not know them.
  ///@{
  template <class Call>
  status prepare(const Call& call) {
    result<gpu_traits> gpu;
    return prepare(call, gpu, false);
  }
  template <class Call>
  status prepare(const Call& call, const gpu_traits& known) {
    result<gpu_traits> gpu{known, {}};
    return prepare(call, gpu, true);
  }
  ///@}

  /// Prepares another call with the candidate of the last one. Fails if it does not suit that call; this object is as before then
  /// only if the caller keeps a copy.
  template <class Call>
  status prepare_again(const Call& call) {
    status state;
    visit_candidate([&]<class Candidate>(const Candidate*) {
      state = Candidate::suits(call);
      if (!state.ok()) return;
      const result<gpu_traits> gpu = Candidate::asks_gpu ? Candidate::gpu() : result<gpu_traits>{};
      state = gpu.ok() ? Candidate::make(bytes_, call, gpu.value) : gpu.state;
    });
    return state;
  }

  /// Launches what was prepared, or nothing.
  status launch(cudaStream_t s) const {
    status state;
    visit([&](const auto& prepared) { state = prepared.launch(s); });
    return state;
  }

  /// Calls f with what was prepared, if there is anything.
  template <class F>
  void visit(const F& f) const {
    visit_candidate([&]<class Candidate>(const Candidate*) {
      f(*std::launder(reinterpret_cast<const typename Candidate::prepared*>(bytes_)));
    });
  }

 private:
  template <class Call>
  status prepare(const Call& call, result<gpu_traits>& gpu, bool asked) {
    index_ = -1;
    int i = -1;
    status state{status_code::not_supported, bound::none, 0,
                 takes_every_layout
                     ? "this program has no kernel for this call on this GPU"
                     : "this program has no kernel for this call on this GPU: on Hopper, with "
                       "GIWA_ONLY_TMA_LAYOUTS, tensors must have elements, and addresses and strides that are "
                       "multiples of 16 bytes, strides above 0"};
    const auto decides = [&]<class Candidate>(const Candidate*) {
      ++i;
      if (!Candidate::suits(call).ok()) return false;
      if (Candidate::asks_gpu && !asked) gpu = Candidate::gpu(), asked = true;
      if (gpu.ok() && !Candidate::runs_on(gpu.value)) return false;
      state = gpu.ok() ? Candidate::make(bytes_, call, gpu.value) : gpu.state;
      if (state.ok()) index_ = i;
      return true;
    };
    static_cast<void>((decides(static_cast<const Candidates*>(nullptr)) || ...));
    return state;
  }

  template <class F>
  void visit_candidate(const F& f) const {
    int i = 0;
    static_cast<void>(((i++ == index_ && (f(static_cast<const Candidates*>(nullptr)), true)) || ...));
  }
  static constexpr stdlib::size_t largest(std::initializer_list<stdlib::size_t> sizes) {
    stdlib::size_t most = 0;
    for (const stdlib::size_t n : sizes) most = n > most ? n : most;
    return most;
  }

  alignas(typename Candidates::prepared...) unsigned char bytes_[largest({sizeof(typename Candidates::prepared)...})];
  int index_ = -1;
};

/// Whether kernels may use the pointers of a call. A failure names the argument.
template <class T, class O, class Mask, class Score>
status check_pointers(const attention_params<T, O, Mask, Score>& call) {
  const auto& a = call.views;
  status s = check_named_pointers({{a.q, "q"},
                                   {a.k, "k"},
                                   {a.v, "v"},
                                   {a.o, "o"},
                                   {call.lse, "lse"},
                                   {call.sinks, "sinks"},
                                   {call.counter, "workspace"},
                                   {a.packed.q_offsets, "q_offsets"},
                                   {a.packed.k_offsets, "k_offsets"},
                                   {a.packed.q_lengths, "q_lengths"},
                                   {a.packed.k_lengths, "k_lengths"},
                                   {a.packed.k_batch_index, "k_batch_index"}});
  if constexpr (element_traits<T>::has_scales)
    if (s.ok())
      s = check_named_pointers({{call.scales.q, "scales.q"},
                                {call.scales.k, "scales.k"},
                                {call.scales.v, "scales.v"},
                                {call.scales.v_channel, "scales.v_channel"},
                                {call.scales.v_mean, "scales.v_mean"}});
  if constexpr (drops_weights<Score>)
    if (s.ok()) s = check_named_pointers({{call.score.offset, "dropout"}});
  return s;
}

/// Computes a call whose sizes are checked: launches it on a stream, or prepares it for a plan.
///@{
template <class Prepared, class Call>
status run_call(cudaStream_t s, const Call& call) {
  if (const status state = check_pointers(call); !state.ok()) return state;
  Prepared prepared;
  const status state = prepared.prepare(call);
  return state.ok() ? prepared.launch(s) : state;
}
template <class Prepared, class Call>
status run_call(const plan_target<Prepared>& plan, const Call& call) {
  const status state = check_pointers(call);
  return state.ok() ? plan.prepared.prepare(call) : state;
}
///@}

/// One kernel with its grid and parameters. A grid without blocks launches nothing.
template <class Op>
struct prepared_kernel {
  launch_config config;
  typename Op::params params;

  /// Checks the configuration too.
  static status make(void* to, const launch_config& config, const typename Op::params& params) {
    ::new (to) prepared_kernel{config, params};
    return allow_op<Op>(config);
  }
  status launch(cudaStream_t s) const { return enqueue_op(s, config, Op{}, params); }
};

/// A kernel that is not part of every call: prepared, or nothing.
template <class Prepared>
class optional_kernel {
 public:
  template <class... Arguments>
  status make(const Arguments&... arguments) {
    const status state = Prepared::make(bytes_, arguments...);
    exists_ = state.ok();
    return state;
  }
  status launch(cudaStream_t s) const { return exists_ ? value().launch(s) : status{}; }
  const Prepared& value() const { return *std::launder(reinterpret_cast<const Prepared*>(bytes_)); }

 private:
  alignas(Prepared) unsigned char bytes_[sizeof(Prepared)];
  bool exists_ = false;
};

/// In the place of a kernel that a call never has.
struct no_kernel {
  status launch(cudaStream_t) const { return {}; }
};

/// Launches one after the other, up to the first that fails.
template <class... Prepared>
status launch_all(cudaStream_t s, const Prepared&... prepared) {
  status state;
  static_cast<void>(((state = prepared.launch(s), state.ok()) && ...));
  return state;
}

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
