// SPDX-License-Identifier: MIT
// Converts eight 4-bit integers in a register to fp16.
#ifndef GIWA_ARCH_CONVERT_INT4_CUH
#define GIWA_ARCH_CONVERT_INT4_CUH

#include <giwa/base/arch.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Converts eight integers of 4 bits in two's complement to four pairs of fp16: pair i has integers i and i + 4. Exact. 9
/// instructions: an integer plus 8 in the fraction of 1024 is 1024 + 8 + x, and four bits further 1024 + 16 (8 + x).
GIWA_DEVICE inline void int4_to_fp16([[maybe_unused]] uint32 eight, uint32 (&pair)[4]) {
#if defined(__CUDA_ARCH__)
  for (int i = 0; i < 4; i += 2) {
    const uint32 four = eight >> (4 * i);
    const uint32 low = (four & 0x000f000fu) ^ 0x64086408u, high = (four & 0x00f000f0u) ^ 0x64806480u;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(pair[i]) : "r"(low), "r"(0xe408e408u));  // -1032
    // 1 / 16 and -72
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair[i + 1]) : "r"(high), "r"(0x2c002c00u), "r"(0xd480d480u));
  }
#else
  pair[0] = pair[1] = pair[2] = pair[3] = 0;
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
