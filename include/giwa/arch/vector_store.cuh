// SPDX-License-Identifier: MIT
// Writes of 16 bytes in one instruction.
#ifndef GIWA_ARCH_VECTOR_STORE_CUH
#define GIWA_ARCH_VECTOR_STORE_CUH

#include <giwa/base/arch.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Writes 16 bytes to any memory; `to` is aligned to 16 bytes. The compiler may split an assignment into four of 4 bytes
/// (nvcc 13.0). Source: PTX ISA, "st".
GIWA_DEVICE inline void store_16_bytes(void* to, const uint4& from) {
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from.x), "r"(from.y), "r"(from.z), "r"(from.w)
               : "memory");
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
