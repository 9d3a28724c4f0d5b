// SPDX-License-Identifier: MIT
// Programmatic dependent launch: letting the next kernel start, and waiting for the previous one (griddepcontrol).
#ifndef GIWA_ARCH_DEPENDENT_LAUNCH_CUH
#define GIWA_ARCH_DEPENDENT_LAUNCH_CUH

#include <giwa/base/arch.hpp>

namespace giwa::inline GIWA_ABI::arch {

// For kernels launched with launch_config::dependent, in code for sm_90 and newer. In other launches, in code for older GPUs and on
// the host a kernel starts when the previous one has ended, and both functions do nothing. PTX ISA, "griddepcontrol".

/// Lets the next kernel on the stream start, if it was launched as dependent, once all blocks of this kernel have
/// called this function or ended. Results are not visible yet: the next kernel waits for them with
/// wait_for_previous_kernel().
GIWA_HOST_DEVICE inline void launch_dependents() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the previous kernels on the stream have ended and their writes are visible. A thread calls it before it
/// reads their results, or writes memory that they may still read or write.
GIWA_HOST_DEVICE inline void wait_for_previous_kernel() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
