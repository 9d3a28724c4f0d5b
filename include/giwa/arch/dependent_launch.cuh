// SPDX-License-Identifier: MIT
// Kernels that overlap with the next one on the stream: letting it start, and waiting for the one before (griddepcontrol).
#ifndef GIWA_ARCH_DEPENDENT_LAUNCH_CUH
#define GIWA_ARCH_DEPENDENT_LAUNCH_CUH

#include <giwa/base/arch.hpp>

namespace giwa::inline GIWA_ABI::arch {

// For kernels that are launched with launch_config::dependent; sm_90 and newer. Elsewhere, on the host, and in a launch
// without it, a kernel starts when the one before has ended, and both do nothing. PTX ISA, "griddepcontrol".

/// The next kernel on the stream, if it was launched as dependent, may start once all blocks of this one have called this or
/// ended. It says nothing about results: the next kernel still waits for those.
GIWA_HOST_DEVICE inline void launch_dependents() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the kernels before this one on the stream have ended and all that they wrote can be read. Each thread that
/// reads their results calls it before, and so does each that writes what they may still read or write.
GIWA_HOST_DEVICE inline void wait_for_previous_kernel() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
