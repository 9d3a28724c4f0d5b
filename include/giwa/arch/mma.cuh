// SPDX-License-Identifier: MIT
// Tensor-core products of a warp: d += a b for small matrices in registers (mma.sync).
#ifndef GIWA_ARCH_MMA_CUH
#define GIWA_ARCH_MMA_CUH

#include <giwa/base/arch.hpp>
#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI::arch {

// All lanes of a warp call these together. a is (16, k), b is (k, 8), d is (16, 8); tile/fragment.hpp maps elements to
// lanes. PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: mma". Accumulation is in fp32 and truncates
// toward zero.

/// Computes d (16, 8) += a (16, 16) b (16, 8). T is fp16 (sm_75 and newer, there in two steps) or bf16 (sm_80), packed
/// in pairs.
template <class T>
GIWA_DEVICE void mma_16x8x16([[maybe_unused]] float (&d)[4], [[maybe_unused]] const uint32 (&a)[4],
                             [[maybe_unused]] const uint32 (&b)[2]) {
  static_assert(stdlib::same_as<T, fp16> || stdlib::same_as<T, bf16>, "giwa: mma_16x8x16 needs fp16 or bf16.");
#if GIWA_ARCH_CAPABILITY >= 80
  if constexpr (stdlib::same_as<T, fp16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  if constexpr (stdlib::same_as<T, fp16>) {
    for (int half = 0; half < 2; ++half)
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
  } else {
    __trap();
  }
#endif
}

/// Computes d (16, 8) += a (16, 8) b (8, 8) in tf32; see to_tf32(). sm_80.
GIWA_DEVICE inline void mma_16x8x8_tf32([[maybe_unused]] float (&d)[4], [[maybe_unused]] const uint32 (&a)[4],
                                        [[maybe_unused]] const uint32 (&b)[2]) {
#if GIWA_ARCH_CAPABILITY >= 80
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

/// Rounds a float to 10 bits of fraction, to nearest, ties away from zero. The tensor cores truncate operands that are
/// not rounded before. sm_80. Source: PTX ISA, "cvt", .rna.tf32.
GIWA_DEVICE inline uint32 to_tf32([[maybe_unused]] float x) {
#if GIWA_ARCH_CAPABILITY >= 80
  uint32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#else
  __trap();
  return 0;
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
