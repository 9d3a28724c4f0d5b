// SPDX-License-Identifier: MIT
// a * b + c in fp32: with one rounding on both sides, on the device alone, or with subnormal numbers kept as well.
#ifndef GIWA_NUMERIC_MULTIPLY_ADD_HPP
#define GIWA_NUMERIC_MULTIPLY_ADD_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// a * b + c with one rounding, on host and device. Without a compiler flag for FMA instructions the host calls its
/// library.
GIWA_HOST_DEVICE inline float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return ::__fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

/// a * b + c: one instruction and one rounding on the device; on the host what its compiler makes of it, so that loops
/// of it are fast without FMA instructions too.
GIWA_HOST_DEVICE inline float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return ::__fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

/// a * b + c with one rounding, subnormal numbers included, whatever the fast-math flags of nvcc.
GIWA_HOST_DEVICE inline float fma_with_subnormals(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return ::__fmaf_ieee_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
