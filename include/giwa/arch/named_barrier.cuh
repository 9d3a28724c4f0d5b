// SPDX-License-Identifier: MIT
// Named barriers: 16 for each block, by number, each for as many warps as the call states.
#ifndef GIWA_ARCH_NAMED_BARRIER_CUH
#define GIWA_ARCH_NAMED_BARRIER_CUH

#include <giwa/arch/random_delay.cuh>
#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// The number of a named barrier: an int, or an enumerator of the kernel's own enum, `enum class named_barrier : int`.
template <class Id>
concept barrier_id = stdlib::same_as<Id, int> || stdlib::is_enum_v<Id>;

/// Waits until `threads` threads have arrived at barrier `id`, those that only arrive included. What they wrote to
/// shared memory before is then visible. `threads` is a multiple of 32 and the same in every call for one barrier; `id`
/// is 1 to 15, since 0 is the barrier of __syncthreads. Source: PTX ISA, "bar, barrier".
template <barrier_id Id>
GIWA_DEVICE void barrier_sync(Id id, int threads) {
#if defined(GIWA_RANDOM_DELAYS)
  sleep_at_random();
#endif
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(static_cast<int>(id)), "r"(threads) : "memory");
}

/// Waits as barrier_sync() does, at a barrier at which every thread waits, and returns whether `condition` holds in any of them.
template <barrier_id Id>
GIWA_DEVICE bool barrier_any(Id id, int threads, bool condition) {
  int any;
#if defined(GIWA_RANDOM_DELAYS)
  sleep_at_random();
#endif
  asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %3, 0; barrier.cta.red.or.pred q, %1, %2, p; selp.s32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(static_cast<int>(id)), "r"(threads), "r"(static_cast<int>(condition))
               : "memory");
  return any != 0;
}

/// Arrives at barrier `id` as one of its `threads` threads, and does not wait.
template <barrier_id Id>
GIWA_DEVICE void barrier_arrive(Id id, int threads) {
#if defined(GIWA_RANDOM_DELAYS)
  sleep_at_random();
#endif
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(static_cast<int>(id)), "r"(threads) : "memory");
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
