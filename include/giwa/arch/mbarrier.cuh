// SPDX-License-Identifier: MIT
// mbarrier: a barrier in shared memory that counts arrivals of threads and bytes of asynchronous copies.
#ifndef GIWA_ARCH_MBARRIER_CUH
#define GIWA_ARCH_MBARRIER_CUH

#include <giwa/arch/random_delay.cuh>
#include <giwa/arch/shared_address.cuh>

namespace giwa::inline GIWA_ABI::arch {

/// A barrier in shared memory. A phase is complete when `count` threads have arrived and all expected bytes have been
/// written; then the next phase begins. Source: PTX ISA, "Parallel Synchronization and Communication Instructions:
/// mbarrier".
///
/// wait(parity) returns when the phase of that parity is complete; the parity of the first phase is 0. A phase cannot
/// be distinguished from the second one after it, so no thread may run two phases ahead of a thread that waits.
struct mbarrier {
  uint64 state;  ///< written by the hardware; in shared memory

  /// Initialises the barrier. One thread calls it, then mbarriers_initialized(); then all users of the barrier
  /// synchronise.
  GIWA_DEVICE void initialize(int count) {
#if GIWA_ARCH_CAPABILITY >= 80
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
#else
    __trap();
#endif
  }

  /// Arrives once.
  GIWA_DEVICE void arrive() {
#if GIWA_ARCH_CAPABILITY >= 80
    asm volatile("{ .reg .b64 token; mbarrier.arrive.shared::cta.b64 token, [%0]; }" ::"r"(address()) : "memory");
#else
    __trap();
#endif
  }

  /// Arrives, and adds `bytes` of asynchronous copies to those that the phase expects (fewer than 2^20). sm_90.
  GIWA_DEVICE void arrive_and_expect(int bytes) {
#if GIWA_ARCH_CAPABILITY >= 90
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
#else
    __trap();
#endif
  }

  /// Arrives at the barrier at the same offset in another block of the cluster, so that copies of that block may
  /// overwrite what this thread's warp has read. sm_90. Releases at block scope only: accesses to the memory of the
  /// other block are not ordered. A release at cluster scope costs a fence of the whole GPU (a matrix product of 8192^3
  /// fell from 750 to 510 TFLOP/s).
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

  /// Returns whether the phase of that parity is complete. On sm_90 it may wait for a short time before it returns false.
  GIWA_DEVICE bool is_over(uint32 parity) {
#if GIWA_ARCH_CAPABILITY >= 90
    uint32 over;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"(address()), "r"(parity)
                 : "memory");
    return over != 0;
#else
    return is_over_now(parity);
#endif
  }
  /// The same without a wait.
  GIWA_DEVICE bool is_over_now(uint32 parity) {
#if GIWA_ARCH_CAPABILITY >= 80
    uint32 over;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"(address()), "r"(parity)
                 : "memory");
    return over != 0;
#else
    __trap();
    return true;
#endif
  }

  /// Arrives when all earlier asynchronous copies (cp.async) of this thread are complete. Counts as one of the arrivals
  /// of initialize().
  GIWA_DEVICE void arrive_after_copies() {
#if GIWA_ARCH_CAPABILITY >= 80
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
#else
    __trap();
#endif
  }

  /// Waits until the phase of that parity is complete.
  GIWA_DEVICE void wait(uint32 parity) {
#if defined(GIWA_RANDOM_DELAYS)
    sleep_at_random();
#endif
    while (!is_over(parity)) {
    }
  }

  /// Returns the address in shared memory.
  GIWA_DEVICE uint32 address() const { return shared_address(this); }
};

/// Makes initialised barriers visible to the other blocks of the cluster and to TMA. sm_90.
GIWA_DEVICE inline void mbarriers_initialized() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
