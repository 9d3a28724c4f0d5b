// SPDX-License-Identifier: MIT
// The current GPU, as far as the choice of a kernel depends on it, and the kernels that this program contains.
#ifndef GIWA_ATTENTION_CHOOSE_GPU_CUH
#define GIWA_ATTENTION_CHOOSE_GPU_CUH

#include <giwa/attention/problem/problem.hpp>
#include <giwa/attention/problem/traits.hpp>
#include <giwa/base/arch.hpp>
#include <giwa/device/environment.cuh>
#include <giwa/grid/launch.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Whether this file may run on a GPU without asynchronous copies. Then it contains the portable kernel for every type.
inline constexpr bool runs_below_sm80 = compiled_for(0, 800);

/// Whether this file may contain the Hopper kernel. A build for 90 instead of 90a contains an empty kernel, which is
/// never launched. Newer GPUs do not run its instructions: a file only for them has no such kernel, and the caller's
/// tile applies to the mma.sync kernel.
inline constexpr bool has_sm90 = compiled_for(900, 1000);

/// Whether this file may run on a GPU whose blocks have less shared memory than those of 9.0 to 11.x.
inline constexpr bool may_lack_shared_memory = compiled_for(0, 900) || compiled_for(1200, 1 << 20);

/// Whether code for 90a computes attention_forward and attention_backward for layouts that TMA cannot address too. That takes other
/// kernels, those of mma.sync; a file of which the user says that it has no such call leaves them out.
#if defined(GIWA_ONLY_TMA_LAYOUTS)
inline constexpr bool takes_every_layout = !has_sm90;
#else
inline constexpr bool takes_every_layout = true;
#endif

/// Returns the newest kernels that this program has for the current GPU.
inline result<attention_path> path_here() {
  if constexpr (!runs_below_sm80 && !has_sm90) {
    return {attention_path::sm80, {}};
  } else {
    const result<device_code> code = code_for_current_device();
    if (code.value.architecture_specific) return {attention_path::sm90, code.state};
    return {code.value.ptx >= 80 ? attention_path::sm80 : attention_path::simt, code.state};
  }
}

/// Returns the same from the attributes of an op's Hopper kernel, which cost less to ask. Where the answer is sm90, the kernel's
/// limit of shared memory is raised.
template <class Op>
result<attention_path> path_of() {
  const auto kernel = reinterpret_cast<const void*>(&entry<Op>);
  const result<kernel_attributes> a = attributes_of(kernel);
  if (!a.ok()) return {attention_path::simt, a.state};
  // Outside of code for sm_90a the body of the kernel is empty and takes a few registers; this one takes at least 128.
  constexpr int most_registers_of_empty_body = 64;
  if (a.value.registers <= most_registers_of_empty_body)
    return {a.value.ptx >= 80 ? attention_path::sm80 : attention_path::simt, {}};
  return {attention_path::sm90, allow_shared_bytes(kernel, shared_bytes_of<Op>, a.value).state};
}

/// Returns the traits of the current GPU, without instructions for which this program has no code.
inline result<gpu_traits> current_gpu(const result<attention_path>& path) {
  if (!path.ok()) return {{}, path.state};
  const result<int> device = current_device();
  if (!device.ok()) return {{}, device.state};
  const result<int64> shared = attribute(device.value, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (!shared.ok()) return {{}, shared.state};
  const result<int64> multiprocessors = attribute(device.value, cudaDevAttrMultiProcessorCount);
  return {{path.value != attention_path::simt, path.value == attention_path::sm90, shared.value, multiprocessors.value},
          multiprocessors.state};
}
inline result<gpu_traits> current_gpu() { return current_gpu(path_here()); }

/// An op that is not launched where code for 90a runs: that code has no body of it, so it takes no time to compile there.
template <class Op>
struct no_sm90a_op : Op {
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const typename Op::params& p, typename Op::shared_storage& s) const {
#if GIWA_ARCH_HAS_SM90A
    static_cast<void>(block), static_cast<void>(p), static_cast<void>(s);
    __trap();  // never launched: its candidate does not run there, or comes after one that suits 9.0
#else
    Op::operator()(block, p, s);
#endif
  }
};
/// An op that 9.0 launches only for layouts that TMA cannot address, unless it is `IsNeeded` there.
template <class Op, bool IsNeeded = false>
using any_layout_op = stdlib::conditional_t<takes_every_layout || IsNeeded, Op, no_sm90a_op<Op>>;

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
