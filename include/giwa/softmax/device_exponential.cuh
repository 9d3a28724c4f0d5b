// SPDX-License-Identifier: MIT
// e^x by the GPU's own instruction, which no fast-math flag changes; in an op that runs on the host, by its series.
#ifndef GIWA_SOFTMAX_DEVICE_EXPONENTIAL_CUH
#define GIWA_SOFTMAX_DEVICE_EXPONENTIAL_CUH

#include <giwa/arch/math.cuh>
#include <giwa/softmax/exponential.hpp>

namespace giwa::inline GIWA_ABI {

/// e^d for d <= 0, as 2^(d log2 e) with ex2.approx: exactly 1 for 0; 0 for -inf, and where the result is below 2^-126; NaN for
/// NaN. The relative error is below 2^-22 + |d| 2^-24: the product is rounded, as the difference x - max is that d comes from.
/// A double, and an op on the host, take the series.
struct device_exponential {
  GIWA_HOST_DEVICE double operator()(double d) const { return exponential{}(d); }
  GIWA_HOST_DEVICE float operator()(float d) const {
#if defined(__CUDA_ARCH__)
    return arch::exp2_approximate(d * 1.44269504088896340736f);
#else
    return exponential{}(d);
#endif
  }
};

namespace detail {

/// 1 / x, rounded to the nearest.
GIWA_HOST_DEVICE inline double device_reciprocal(double x) { return 1 / x; }
GIWA_HOST_DEVICE inline float device_reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  return arch::reciprocal(x);
#else
  return 1 / x;
#endif
}

/// a * b, and a subnormal result stays.
GIWA_HOST_DEVICE inline double device_product(double a, double b) { return a * b; }
GIWA_HOST_DEVICE inline float device_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return arch::multiply(a, b);
#else
  return a * b;
#endif
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
