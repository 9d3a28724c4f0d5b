// SPDX-License-Identifier: MIT
// call_plan: a call of attention that is checked and prepared once, and launched many times.
#ifndef GIWA_ATTENTION_CALL_CALL_PLAN_HPP
#define GIWA_ATTENTION_CALL_CALL_PLAN_HPP

#include <giwa/attention/call/forward_types.hpp>
#include <giwa/device/properties.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The GPU that a plan was made for.
struct plan_device {
  int number = -1;

  /// Whether the plan exists and its GPU is the current one.
  status check() const {
    if (number < 0) return status::invalid("plan", "the plan is empty: make it with make_attention_plan()");
    const result<int> device = current_device();
    if (!device.ok() || device.value == number) return device.state;
    return status::invalid("plan", "the plan was made for another GPU than the current one", bound::exactly, number,
                           device.value);
  }
};

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// A prepared call of attention_cached or attention_backward: checked, with its kernels, their parameters and tensor maps, for the
/// GPU that was current when make_attention_plan() made it. Owns no memory of a GPU, and refers to the tensors of the call, which
/// must be there at each launch; lengths, offsets and page tables on the device are read by each launch. May be copied. launch()
/// may be called from several host threads at once.
template <class Prepared>
class call_plan {
 public:
  /// No call: launch() fails.
  call_plan() = default;

  /// Launches the call on a stream of the plan's GPU, which must be the current one. Gives the bits of the call. Asynchronous;
  /// allocates nothing; may be captured in a graph. Launches on streams that do not wait for each other need a workspace each.
  /// Errors: the plan is empty; another GPU is current; those of the runtime.
  status launch(cudaStream_t s) const {
    const status state = device_.check();
    return state.ok() ? prepared_.launch(s) : state;
  }

  /// What make_attention_plan() calls: prepare(target) is the call with a target in the place of the stream.
  template <class Prepare>
  static result<call_plan> make(const Prepare& prepare) {
    const result<int> device = current_device();
    if (!device.ok()) return {{}, device.state};
    result<call_plan> plan;
    plan.value.device_ = {device.value};
    plan.state = prepare(detail::plan_target<Prepared>{plan.value.prepared_});
    return plan.ok() ? plan : result<call_plan>{{}, plan.state};
  }

 private:
  detail::plan_device device_;
  Prepared prepared_;
};

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
