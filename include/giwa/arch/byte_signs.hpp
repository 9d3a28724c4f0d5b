// SPDX-License-Identifier: MIT
// Masks of two 16-bit elements from the sign bits of bytes.
#ifndef GIWA_ARCH_BYTE_SIGNS_HPP
#define GIWA_ARCH_BYTE_SIGNS_HPP

#include <giwa/base/arch.hpp>
#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Bits 0 to 15 are bit 7 of byte `byte` of `low`, bits 16 to 31 that of `high`. One instruction. Source: PTX ISA, "Data
/// Movement and Conversion Instructions: prmt", with the sign replicated.
GIWA_HOST_DEVICE inline uint32 halves_of_signs(uint32 low, uint32 high, int byte) {
#if defined(__CUDA_ARCH__)
  uint32 two;
  const uint32 selector = 0xcc88u + 0x1111u * static_cast<uint32>(byte);
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(two) : "r"(low), "r"(high), "r"(selector));
  return two;
#else
  const int bit = 8 * byte + 7;
  return ((low >> bit & 1) != 0 ? 0x0000ffffu : 0u) | ((high >> bit & 1) != 0 ? 0xffff0000u : 0u);
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
