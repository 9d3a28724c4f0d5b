// SPDX-License-Identifier: MIT
// Masks of two 16-bit elements from the sign bits of bytes.
#ifndef GIWA_ARCH_BYTE_SIGNS_HPP
#define GIWA_ARCH_BYTE_SIGNS_HPP

#include <giwa/base/arch.hpp>
#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Bits 0 to 15 are bit 7 of byte `of_low` of `low`, bits 16 to 31 that of byte `of_high` of `high`. One instruction.
/// Source: PTX ISA, "Data Movement and Conversion Instructions: prmt", with the sign replicated.
GIWA_HOST_DEVICE inline uint32 halves_of_signs(uint32 low, uint32 high, int of_low, int of_high) {
#if defined(__CUDA_ARCH__)
  uint32 two;
  const uint32 selector = 0xcc88u + 0x11u * static_cast<uint32>(of_low) + 0x1100u * static_cast<uint32>(of_high);
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(two) : "r"(low), "r"(high), "r"(selector));
  return two;
#else
  return ((low >> (8 * of_low + 7) & 1) != 0 ? 0x0000ffffu : 0u) |
         ((high >> (8 * of_high + 7) & 1) != 0 ? 0xffff0000u : 0u);
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
