// SPDX-License-Identifier: MIT
// Election of one lane of a warp, in a way that the compiler understands (elect.sync).
#ifndef GIWA_ARCH_ELECT_CUH
#define GIWA_ARCH_ELECT_CUH

#include <giwa/base/arch.hpp>
#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Returns true in one lane of the warp, the same in every call. All 32 lanes call it together. Around instructions
/// that one thread issues (tensor copies, arrivals at mbarriers) ptxas then needs no loop over the lanes. Below sm_90
/// it elects lane 0. Source: PTX ISA, "elect.sync".
GIWA_DEVICE inline bool elect_one() {
#if GIWA_ARCH_CAPABILITY >= 90
  uint32 elected;
  asm volatile("{ .reg .b32 leader; .reg .pred p; elect.sync leader|p, 0xffffffff; selp.u32 %0, 1, 0, p; }"
               : "=r"(elected));
  return elected != 0;
#else
  uint32 lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane == 0;
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
