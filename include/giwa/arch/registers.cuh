// SPDX-License-Identifier: MIT
// Moving registers between the warpgroups of a block: a producer gives up what the consumers need.
#ifndef GIWA_ARCH_REGISTERS_CUH
#define GIWA_ARCH_REGISTERS_CUH

#include <giwa/base/arch.hpp>

namespace giwa::inline GIWA_ABI::arch {

// Both are for all four warps of a warpgroup, in a kernel whose launch bounds name both numbers; ptxas ignores them
// elsewhere (C7508). Count is a multiple of 8 from 24 to 256. PTX ISA, "setmaxnreg".

/// From here on a thread of this warpgroup holds `Count` registers, fewer than before.
template <int Count>
GIWA_DEVICE void release_registers() {
  static_assert(Count % 8 == 0 && Count >= 24 && Count <= 256, "giwa: setmaxnreg takes 24, 32, … 256 registers.");
#if GIWA_ARCH_HAS_SM90A
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#else
  __trap();
#endif
}

/// The same for more than before. Waits until others have released as many.
template <int Count>
GIWA_DEVICE void claim_registers() {
  static_assert(Count % 8 == 0 && Count >= 24 && Count <= 256, "giwa: setmaxnreg takes 24, 32, … 256 registers.");
#if GIWA_ARCH_HAS_SM90A
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#else
  __trap();
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
