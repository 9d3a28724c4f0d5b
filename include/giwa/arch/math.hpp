// SPDX-License-Identifier: MIT
// Floating-point instructions by name: the compiler's fast-math flags do not change them.
#ifndef GIWA_ARCH_MATH_HPP
#define GIWA_ARCH_MATH_HPP

#include <giwa/base/macros.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Returns |x|. On a GPU it is mostly a part of the instruction that uses it.
///@{
GIWA_HOST_DEVICE inline float magnitude(float x) {
#if defined(__CUDA_ARCH__)
  return ::fabsf(x);
#else
  return __builtin_fabsf(x);
#endif
}
GIWA_HOST_DEVICE inline double magnitude(double x) {
#if defined(__CUDA_ARCH__)
  return ::fabs(x);
#else
  return __builtin_fabs(x);
#endif
}
///@}

/// Returns 2^x with an error of about 2 units in the last place. Results below 2^-126 become 0. Exactly 1 for 0, and 0
/// for -inf. Source: PTX ISA, "Floating Point Instructions: ex2".
GIWA_DEVICE inline float exp2_approximate([[maybe_unused]] float x) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// Returns log2 x with an absolute error of 2^-22 near 1 and a relative error of 2^-22 elsewhere; -inf for 0 and for
/// subnormal numbers. Source: PTX ISA, "Floating Point Instructions: lg2".
GIWA_DEVICE inline float log2_approximate([[maybe_unused]] float x) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// Returns 1 / x with an error of 1 unit in the last place. Subnormal numbers count as 0. Source: PTX ISA, "Floating
/// Point Instructions: rcp".
GIWA_DEVICE inline float reciprocal_approximate([[maybe_unused]] float x) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// Returns 1 / x rounded to nearest, subnormal numbers included.
GIWA_DEVICE inline float reciprocal([[maybe_unused]] float x) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("rcp.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// Returns a * b rounded to nearest, subnormal results included. It is never contracted to a fused multiply-add, and
/// -ftz does not apply to it. Source: PTX ISA, "Floating Point Instructions: mul".
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
