// SPDX-License-Identifier: MIT
// Asynchronous copies from global to shared memory (cp.async).
#ifndef GIWA_ARCH_COPY_ASYNC_CUH
#define GIWA_ARCH_COPY_ASYNC_CUH

#include <giwa/arch/l2_policy.hpp>
#include <giwa/arch/shared_address.cuh>

namespace giwa::inline GIWA_ABI::arch {

// sm_80 and newer. PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy". Each thread waits for its own
// copies. A barrier after that makes them visible to other threads.

/// Starts a copy of `Bytes` (4, 8 or 16) bytes from global memory at `from` to shared memory at address `to`, both
/// aligned to Bytes. A copy of 16 bytes bypasses the L1 cache (.cg); smaller ones can only go through it (.ca).
template <int Bytes>
GIWA_DEVICE void copy_async([[maybe_unused]] uint32 to, [[maybe_unused]] const void* from) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "giwa: cp.async copies 4, 8 or 16 bytes.");
#if GIWA_ARCH_CAPABILITY >= 80
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "n"(Bytes)
                 : "memory");
#else
  __trap();
#endif
}

/// Starts a copy of the first `bytes` of Bytes (4, 8 or 16) bytes, and fills the others with zeros. `from` is aligned to
/// Bytes, and is not read if `bytes` is 0.
template <int Bytes = 16>
GIWA_DEVICE void copy_async_and_fill([[maybe_unused]] uint32 to, [[maybe_unused]] const void* from,
                                     [[maybe_unused]] int bytes) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "giwa: cp.async copies 4, 8 or 16 bytes.");
#if GIWA_ARCH_CAPABILITY >= 80
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "n"(Bytes), "r"(bytes)
                 : "memory");
#else
  __trap();
#endif
}

/// The same of 16 bytes, with a policy of the L2 cache. sm_90.
GIWA_DEVICE inline void copy_async_and_fill([[maybe_unused]] uint32 to, [[maybe_unused]] const void* from,
                                            [[maybe_unused]] int bytes, [[maybe_unused]] l2_policy policy) {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "l"(static_cast<uint64>(policy))
               : "memory");
#else
  __trap();
#endif
}

/// Asks the L2 cache for the 128 bytes around an address. A hint: nothing waits for it.
GIWA_DEVICE inline void prefetch_to_l2([[maybe_unused]] const void* from) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)) : "memory");
#endif
}

/// Commits this thread's copies since the last commit as one group, which may be empty.
GIWA_DEVICE inline void copy_async_commit() {
#if GIWA_ARCH_CAPABILITY >= 80
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  __trap();
#endif
}

/// Waits until at most `Pending` of this thread's groups, the latest, are incomplete.
template <int Pending>
GIWA_DEVICE void copy_async_wait() {
  static_assert(Pending >= 0, "giwa: the number of pending groups must not be negative.");
#if GIWA_ARCH_CAPABILITY >= 80
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#else
  __trap();
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
