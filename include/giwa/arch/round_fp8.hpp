// SPDX-License-Identifier: MIT
// Rounds four numbers to e4m3, two in one instruction where it exists.
#ifndef GIWA_ARCH_ROUND_FP8_HPP
#define GIWA_ARCH_ROUND_FP8_HPP

#include <giwa/base/arch.hpp>
#include <giwa/numeric/fp8.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Converts four numbers to e4m3 as the type does, the first into the lowest byte: to nearest, ties to even, saturated.
/// sm_89: one instruction for two. Source: PTX ISA, "Data Movement and Conversion Instructions: cvt", .e4m3x2.f32.
GIWA_HOST_DEVICE inline uint32 fp32_to_e4m3(const float (&x)[4]) {
#if GIWA_ARCH_CAPABILITY >= 89
  uint32 four;
  asm("{\n\t"
      ".reg .b16 low, high;\n\t"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n\t"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n\t"
      "mov.b32 %0, {low, high};\n\t"
      "}"
      : "=r"(four)
      : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
  return four;
#else
  uint32 four = 0;
  for (int i = 0; i < 4; ++i) four |= static_cast<uint32>(e4m3(x[i]).bits()) << (8 * i);
  return four;
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
