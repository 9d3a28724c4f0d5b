// SPDX-License-Identifier: MIT
// Asynchronous copies from global to shared memory (cp.async).
#ifndef GIWA_ARCH_COPY_ASYNC_CUH
#define GIWA_ARCH_COPY_ASYNC_CUH

#include <giwa/arch/shared_address.cuh>

namespace giwa::inline GIWA_ABI::arch {

#if defined(GIWA_RANDOM_DELAYS)
// For tests, as random_delay: copies of 4 bytes are late. Their bytes are NaN until the thread waits for them, or lets an mbarrier
// wait. There is a list for each lane of each warp that a multiprocessor has room for.
struct late_copies {
  static constexpr int most = 8;
  int count;
  int bytes[most];
  uint32 to[most];
  const void* from[most];
};
static __device__ late_copies late_copies_of[160 * 64 * 32];
GIWA_DEVICE inline late_copies& late_copies_of_thread() {
  uint32 multiprocessor, warp;
  asm volatile("mov.u32 %0, %%smid; mov.u32 %1, %%warpid;" : "=r"(multiprocessor), "=r"(warp));
  return late_copies_of[(multiprocessor % 160 * 64 + warp % 64) * 32 + threadIdx.x % 32];
}
GIWA_DEVICE inline void copy_late(uint32 to, const void* from, int bytes) {
  late_copies& late = late_copies_of_thread();
  if (late.count == late_copies::most) __trap();
  asm volatile("st.shared.u32 [%0], 0xffffffff;" ::"r"(to) : "memory");
  late.to[late.count] = to, late.from[late.count] = from, late.bytes[late.count++] = bytes;
}
GIWA_DEVICE inline void end_late_copies() {
  late_copies& late = late_copies_of_thread();
  for (int i = 0; i < late.count; ++i) {
    const uint32 value = late.bytes[i] == 0 ? 0 : *static_cast<const volatile uint32*>(late.from[i]);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(late.to[i]), "r"(value) : "memory");
  }
  late.count = 0;
}
#endif

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
#if defined(GIWA_RANDOM_DELAYS)
  if constexpr (Bytes == 4) return copy_late(to, from, bytes);
#endif
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
#if defined(GIWA_RANDOM_DELAYS)
  if constexpr (Pending == 0) end_late_copies();
#endif
#if GIWA_ARCH_CAPABILITY >= 80
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#else
  __trap();
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
