// SPDX-License-Identifier: MIT
// Delays for tests.
#ifndef GIWA_ARCH_RANDOM_DELAY_CUH
#define GIWA_ARCH_RANDOM_DELAY_CUH

#include <giwa/base/arch.hpp>

#if defined(GIWA_RANDOM_DELAYS)
namespace giwa::inline GIWA_ABI::arch {

// In all files of a program or in none: a thread sleeps for up to this many nanoseconds before each wait for an mbarrier and at each
// named barrier, so that the roles of a kernel meet in many orders. Of equal sleeps a role that waits often sleeps longest, and never
// another one falls behind it: so a test also lets some warps of a block sleep alone, those with a bit of delayed_warps.
static __device__ unsigned random_delay = 0, delayed_warps = ~0u;
GIWA_DEVICE inline void sleep_at_random() {
  const unsigned warp = threadIdx.x / 32;
  if (random_delay == 0 || (delayed_warps >> warp % 32 & 1) == 0) return;
  unsigned x = static_cast<unsigned>(clock64()) * 2654435761u ^ warp * 0x85ebca6bu;
  x ^= x >> 15;
  __nanosleep(x * 0xc2b2ae35u % random_delay);
}

}  // namespace giwa::inline GIWA_ABI::arch
#endif

#endif
