// SPDX-License-Identifier: MIT
// e^x, ln x, 1/x and products by named instructions, which no fast-math flag changes; on the host by series and arithmetic.
#ifndef GIWA_SOFTMAX_DEVICE_EXPONENTIAL_CUH
#define GIWA_SOFTMAX_DEVICE_EXPONENTIAL_CUH

#include <giwa/arch/math.hpp>
#include <giwa/softmax/exponential.hpp>

namespace giwa::inline GIWA_ABI {

/// Computes e^d for d <= 0 as 2^(d log2 e) with ex2.approx: exactly 1 for d = 0, 0 for d = -inf and where the result is below
/// 2^-126, NaN for NaN. The relative error is below 2^-22 + |d| 2^-24, the second part from the rounding of the
/// product. fp64, and an op that runs on the host, use the series of `exponential`.
struct device_exponential {
  /// e^d for d <= 0.
  ///@{
  GIWA_HOST_DEVICE double operator()(double d) const { return exponential{}(d); }
  GIWA_HOST_DEVICE float operator()(float d) const {
#if defined(__CUDA_ARCH__)
    return arch::exp2_approximate(d * detail::log2_e<float>);
#else
    return exponential{}(d);
#endif
  }
  ///@}
};

namespace detail {

/// 1 / x, rounded to nearest.
GIWA_HOST_DEVICE inline double device_reciprocal(double x) { return 1 / x; }
GIWA_HOST_DEVICE inline float device_reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  return arch::reciprocal(x);
#else
  return 1 / x;
#endif
}

/// 1 / x to one unit in the last place, without a branch. On the device subnormal numbers count as 0.
GIWA_HOST_DEVICE inline float quick_reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  return arch::reciprocal_approximate(x);
#else
  return 1 / x;
#endif
}

/// ln x of a sum of exponentials, without a branch. The absolute error is 2^-22 for x < 1.5; above, it is one unit in
/// the last place more. -inf for 0, NaN for a negative number. On the device subnormal numbers count as 0.
GIWA_HOST_DEVICE inline float quick_log(float x) {
#if defined(__CUDA_ARCH__)
  // x = f 2^n with f in [3/4, 3/2), where the error of lg2.approx is absolute.
  const int bits = __float_as_int(x), n = (bits - __float_as_int(0.75f)) >> 23;
  const float f = __int_as_float(bits - (n << 23));
  const float ln = __fmaf_rn(static_cast<float>(n), ln_2<float>, arch::log2_approximate(f) * ln_2<float>);
  return x >= 0x1p-126f && x < infinity_of<float> ? ln : arch::log2_approximate(x);
#else
  return natural_log{}(x);
#endif
}

/// The last two as function objects.
struct quick_logarithm {
  GIWA_HOST_DEVICE float operator()(float x) const { return quick_log(x); }
};
struct quick_inverse {
  GIWA_HOST_DEVICE float operator()(float x) const { return quick_reciprocal(x); }
};

/// a * b; a subnormal result is kept.
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
