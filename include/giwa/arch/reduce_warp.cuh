// SPDX-License-Identifier: MIT
// The largest number of a warp in one instruction.
#ifndef GIWA_ARCH_REDUCE_WARP_CUH
#define GIWA_ARCH_REDUCE_WARP_CUH

#include <giwa/base/arch.hpp>
#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Returns the largest x of the 32 lanes of a warp, which all call it. Compute capability 8.0. Source: PTX ISA, "redux.sync".
GIWA_DEVICE inline uint32 largest_of_warp(uint32 x) {
#if GIWA_ARCH_CAPABILITY >= 80
  uint32 largest;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(x));
  return largest;
#else
  static_cast<void>(x);
  __trap();
  return 0;
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
