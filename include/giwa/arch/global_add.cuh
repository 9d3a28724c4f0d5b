// SPDX-License-Identifier: MIT
// Additions to floats in global memory.
#ifndef GIWA_ARCH_GLOBAL_ADD_CUH
#define GIWA_ARCH_GLOBAL_ADD_CUH

#include <giwa/base/arch.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Adds to four floats, each atomically, in relaxed order at the scope of the GPU. `to` is aligned to 16 bytes. Source: PTX
/// ISA, "red"; four at once from sm_90 on.
GIWA_DEVICE inline void add_four(float* to, const float4& from) {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "f"(from.x), "f"(from.y), "f"(from.z), "f"(from.w)
               : "memory");
#else
  atomicAdd(to, from.x);
  atomicAdd(to + 1, from.y);
  atomicAdd(to + 2, from.z);
  atomicAdd(to + 3, from.w);
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
