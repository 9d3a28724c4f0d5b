// SPDX-License-Identifier: MIT
// Converts four 8-bit integers in a register to fp16.
#ifndef GIWA_ARCH_CONVERT_INT8_CUH
#define GIWA_ARCH_CONVERT_INT8_CUH

#include <giwa/base/arch.hpp>
#include <giwa/numeric/int8_code.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Converts four integers of 8 bits in two's complement to two pairs of fp16: bytes 0 and Step in pair 0, 2 / Step and
/// 2 / Step + Step in pair 1. Step 1 keeps the order of bytes; Step 2 gives bytes 0 and 2, then 1 and 3. Exact. 5 instructions: a
/// byte plus 128 in the fraction of 1024 is 1024 + 128 + x, because fp16 has 10 bits of fraction.
template <int Step>
GIWA_DEVICE inline void int8_to_fp16([[maybe_unused]] uint32 four, uint32 (&pair)[2]) {
  static_assert(Step == 1 || Step == 2);
#if defined(__CUDA_ARCH__)
  const uint32 positive = four ^ 0x80808080u;
  constexpr uint32 first = Step == 1 ? 0x4140 : 0x4240, second = Step == 1 ? 0x4342 : 0x4341;
  const uint32 large[2] = {__byte_perm(positive, 0x64646464u, first), __byte_perm(positive, 0x64646464u, second)};
  for (int i = 0; i < 2; ++i)  // 0xe480 is -1152
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(pair[i]) : "r"(large[i]), "r"(0xe480e480u));
#else
  pair[0] = pair[1] = 0;
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
