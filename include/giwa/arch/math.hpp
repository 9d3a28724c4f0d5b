// SPDX-License-Identifier: MIT
// Floating-point instructions by name: the same results whatever the fast-math flags of the compilation.
#ifndef GIWA_ARCH_MATH_HPP
#define GIWA_ARCH_MATH_HPP

#include <giwa/base/macros.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// 2^x to about 2 units in the last place; results below 2^-126 become 0; exact for 0, and 0 for -inf
/// (PTX ISA, "Floating Point Instructions: ex2").
GIWA_DEVICE inline float exp2_approximate([[maybe_unused]] float x) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// The binary logarithm, absolute error 2^-22 near 1 and relative 2^-22 elsewhere; -inf for 0 and for subnormal numbers
/// (PTX ISA, "Floating Point Instructions: lg2").
GIWA_DEVICE inline float log2_approximate([[maybe_unused]] float x) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// 1 / x to 1 unit in the last place; subnormal numbers count as 0 (PTX ISA, "Floating Point Instructions: rcp").
GIWA_DEVICE inline float reciprocal_approximate([[maybe_unused]] float x) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// 1 / x to the nearest, subnormal numbers included.
GIWA_DEVICE inline float reciprocal([[maybe_unused]] float x) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("rcp.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// a * b to the nearest, subnormal results kept; never contracted into a fused multiply-add, and no -ftz reaches it
/// (PTX ISA, "Floating Point Instructions: mul").
GIWA_DEVICE inline float multiply([[maybe_unused]] float a, [[maybe_unused]] float b) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
#endif
  return y;
}

/// Returns a * b, rounded up (PTX ISA, "Floating Point Instructions: mul").
GIWA_DEVICE inline float multiply_up([[maybe_unused]] float a, [[maybe_unused]] float b) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("mul.rp.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
#endif
  return y;
}
/// Returns a + b, rounded up (PTX ISA, "Floating Point Instructions: add").
GIWA_DEVICE inline float add_up([[maybe_unused]] float a, [[maybe_unused]] float b) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("add.rp.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
#endif
  return y;
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
