// SPDX-License-Identifier: MIT
// Converts four e4m3 numbers in a register to fp16, two in one instruction where it exists.
#ifndef GIWA_ARCH_CONVERT_FP8_CUH
#define GIWA_ARCH_CONVERT_FP8_CUH

#include <giwa/base/arch.hpp>
#include <giwa/numeric/fp8.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Converts four e4m3 numbers, the first in the lowest byte, to two pairs of fp16, the first in the low halves. Exact;
/// NaN stays NaN, its bits may differ. sm_89: one instruction for a pair; before: seven. Source: PTX ISA, "Data
/// Movement and Conversion Instructions: cvt", .f16x2.e4m3x2.
GIWA_DEVICE inline void e4m3_to_fp16([[maybe_unused]] uint32 four, uint32 (&pair)[2]) {
#if GIWA_ARCH_CAPABILITY >= 89
  asm("{\n\t"
      ".reg .b16 low, high;\n\t"
      "mov.b32 {low, high}, %2;\n\t"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n\t"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n\t"
      "}"
      : "=r"(pair[0]), "=r"(pair[1])
      : "r"(four));
#elif defined(__CUDA_ARCH__)
  // A byte in the upper half of 16 bits, its magnitude one bit lower, is the number times 2^-8 in fp16, because the
  // biases differ by 8; subnormal numbers too. NaN reads as 480.
  for (int i = 0; i < 2; ++i) {
    const uint32 spread = __byte_perm(four, 0, i == 0 ? 0x1404 : 0x3424);  // 0, byte 2 i, 0, byte 2 i + 1
    const uint32 small = (spread & 0x7f007f00) >> 1;
    uint32 magnitude, nan;  // 0x3f80 is the fp16 number 480 * 2^-8
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(magnitude) : "r"(small), "r"(0x5c005c00));  // times 2^8
    asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(nan) : "r"(small), "r"(0x3f803f80));    // all bits of a half, or none
    pair[i] = magnitude | (spread & 0x80008000) | nan;
  }
#else
  pair[0] = pair[1] = 0;
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
