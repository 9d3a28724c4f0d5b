// SPDX-License-Identifier: MIT
// Reading memory that the previous kernel may still write (dependent_launch.cuh).
#ifndef GIWA_ARCH_EARLY_READ_HPP
#define GIWA_ARCH_EARLY_READ_HPP

#include <giwa/base/arch.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Reads a number that a kernel still running may write. The L1 cache is not used, so a read after
/// wait_for_previous_kernel() returns what that kernel wrote. Source: PTX ISA, "ld", "Memory Consistency Model".
GIWA_HOST_DEVICE inline int early_read(const int* from) {
#if GIWA_ARCH_CAPABILITY >= 70
  int value;
  asm volatile("ld.relaxed.gpu.global.L1::no_allocate.s32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
#else
  return *from;
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
