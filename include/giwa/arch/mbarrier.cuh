// SPDX-License-Identifier: MIT
// The barrier in shared memory that counts arrivals of threads and bytes of asynchronous copies.
#ifndef GIWA_ARCH_MBARRIER_CUH
#define GIWA_ARCH_MBARRIER_CUH

#include <giwa/arch/shared_address.cuh>

namespace giwa::inline GIWA_ABI::arch {

#if defined(GIWA_RANDOM_DELAYS)
// For tests, in all files of a program or in none: before each wait for an mbarrier a thread sleeps up to so many nanoseconds,
// so that the roles of a kernel meet in every order.
static __device__ unsigned random_delay = 0;
GIWA_DEVICE inline void sleep_at_random() {
  if (random_delay == 0) return;
  unsigned x = static_cast<unsigned>(clock64()) * 2654435761u ^ threadIdx.x / 32 * 0x85ebca6bu;
  x ^= x >> 15;
  __nanosleep(x * 0xc2b2ae35u % random_delay);
}
#endif

/// A phase is over when `count` arrivals have come and all the bytes that were announced have landed; then the next one
/// begins by itself. PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
///
/// wait(parity) returns once the phase of that parity is over, for the first phase parity is 0. It cannot tell a phase from
/// the one two later: nobody may run two phases ahead of somebody who waits.
struct mbarrier {
  uint64 state;  ///< of the hardware's; in shared memory

  /// By one thread; then mbarriers_initialized() by the same, then a barrier of all who use it.
  GIWA_DEVICE void initialize(int count) {
#if GIWA_ARCH_CAPABILITY >= 80
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
#else
    __trap();
#endif
  }

  /// One arrival.
  GIWA_DEVICE void arrive() {
#if GIWA_ARCH_CAPABILITY >= 80
    asm volatile("{ .reg .b64 token; mbarrier.arrive.shared::cta.b64 token, [%0]; }" ::"r"(address()) : "memory");
#else
    __trap();
#endif
  }

  /// Arrives, and announces so many bytes of asynchronous copies (fewer than 2^20 a phase). sm_90.
  GIWA_DEVICE void arrive_and_expect(int bytes) {
#if GIWA_ARCH_CAPABILITY >= 90
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
#else
    __trap();
#endif
  }

  /// Arrives at the barrier in the same place of another block of the cluster, so that its copies may overwrite what this
  /// thread's warp has read. sm_90. It releases to the own block only: what lies in the other block's memory is not ordered,
  /// and an order over the cluster costs a fence of the whole GPU (a matrix product of 8192^3 fell from 750 to 510 TFLOP/s).
  GIWA_DEVICE void arrive_in(int cluster_rank) {
#if GIWA_ARCH_CAPABILITY >= 90
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;"
        " mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(address()),
        "r"(cluster_rank)
        : "memory");
#else
    __trap();
#endif
  }

  /// Whether the phase of that parity is over; may wait for a moment before it says no. sm_90.
  GIWA_DEVICE bool is_over(uint32 parity) {
#if GIWA_ARCH_CAPABILITY >= 90
    uint32 over;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"(address()), "r"(parity)
                 : "memory");
    return over != 0;
#else
    __trap();
    return true;
#endif
  }

  /// Returns when the phase of that parity is over. sm_90.
  GIWA_DEVICE void wait(uint32 parity) {
#if defined(GIWA_RANDOM_DELAYS)
    sleep_at_random();
#endif
    while (!is_over(parity)) {
    }
  }

  /// Its address in shared memory.
  GIWA_DEVICE uint32 address() const { return shared_address(this); }
};

/// Makes initialised barriers known to the other blocks of the cluster and to the copy engine. sm_90.
GIWA_DEVICE inline void mbarriers_initialized() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
