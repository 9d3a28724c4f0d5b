// SPDX-License-Identifier: MIT
// What the L2 cache keeps of a copy.
#ifndef GIWA_ARCH_L2_POLICY_HPP
#define GIWA_ARCH_L2_POLICY_HPP

#include <giwa/base/arch.hpp>
#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// The policy of the L2 cache for the lines of a copy. The values are those that createpolicy returns for a whole
/// access.
enum class l2_policy : uint64 {
  normal = 0x1000000000000000,
  evict_first = 0x12F0000000000000,
  evict_last = 0x14F0000000000000
};

/// A load and a store of 16 bytes of global memory with a policy. sm_80. PTX ISA, "ld", "st".
///@{
GIWA_DEVICE inline void load_with_policy(const float* from, float* to, [[maybe_unused]] l2_policy policy) {
#if GIWA_ARCH_CAPABILITY >= 80
  asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "l"(from), "l"(static_cast<uint64>(policy))
               : "memory");
#else
  for (int i = 0; i < 4; ++i) to[i] = from[i];
#endif
}
GIWA_DEVICE inline void store_with_policy(float* to, const float* from, [[maybe_unused]] l2_policy policy) {
#if GIWA_ARCH_CAPABILITY >= 80
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(from[0]), "f"(from[1]),
               "f"(from[2]), "f"(from[3]), "l"(static_cast<uint64>(policy))
               : "memory");
#else
  for (int i = 0; i < 4; ++i) to[i] = from[i];
#endif
}
///@}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
