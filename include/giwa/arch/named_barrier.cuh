// SPDX-License-Identifier: MIT
// Barriers of part of a block: 16 of them, known by number, for as many threads as each use says.
#ifndef GIWA_ARCH_NAMED_BARRIER_CUH
#define GIWA_ARCH_NAMED_BARRIER_CUH

#include <giwa/base/arch.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Waits until `threads` threads (a multiple of 32, those that only arrive included) have come to barrier `id` (1 … 15;
/// 0 is the one of __syncthreads). All that they wrote to shared memory is then seen. PTX ISA, "bar, barrier".
GIWA_DEVICE inline void barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts as one of the `threads` of barrier `id`, and does not wait.
GIWA_DEVICE inline void barrier_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
