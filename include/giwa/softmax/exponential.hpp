// SPDX-License-Identifier: MIT
// e^x and ln x from additions and multiplications alone: usable on host and device and in constant expressions.
#ifndef GIWA_SOFTMAX_EXPONENTIAL_HPP
#define GIWA_SOFTMAX_EXPONENTIAL_HPP

#include <giwa/numeric/constants.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The formats of float and double. ln 2 is split into a high part of few bits, whose multiples are exact, and the rest.
template <class T>
struct binary_format;
template <>
struct binary_format<float> {
  using bits = stdlib::int32_t;
  static constexpr int fraction = 23, bias = 127, terms = 7, log_terms = 5;
  static constexpr float lowest = -87.0f;  // e^lowest is still normal
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440054690583e-4f;
};
template <>
struct binary_format<double> {
  using bits = stdlib::int64_t;
  static constexpr int fraction = 52, bias = 1023, terms = 13, log_terms = 11;
  static constexpr double lowest = -708.0;
  static constexpr double ln2_high = 0.693147180369123816490, ln2_low = 1.90821492927058770002e-10;
};

}  // namespace detail

/// Computes e^d for d <= 0 to 1.5 units in the last place, without a branch, so compilers vectorise a loop of it.
/// Exactly 1 for 0; 0 below -87 (float) or -708 (double), the end of the normal numbers; NaN stays NaN.
///
/// Method: d = n ln 2 + r with |r| <= ln(2)/2, and e^r by its Taylor series, whose remainder is below half a unit.
struct exponential {
  /// Returns e^d for d <= 0.
  template <stdlib::floating_point T>
  GIWA_HOST_DEVICE constexpr T operator()(T d) const {
    using format = detail::binary_format<T>;
    using bits = typename format::bits;
    const T c = d > format::lowest ? d : format::lowest;  // NaN becomes `lowest` here, because it has no integer part
    const bits n = static_cast<bits>(c * detail::log2_e<T> - T(0.5));  // the nearest integer, because c <= 0
    const T r = (c - static_cast<T>(n) * format::ln2_high) - static_cast<T>(n) * format::ln2_low;
    T series = 1;
    for (int k = format::terms; k > 0; --k) series = series * r * (T(1) / static_cast<T>(k)) + T(1);
    const T power = __builtin_bit_cast(T, static_cast<bits>((n + format::bias) << format::fraction));  // 2^n
    const T e = d >= format::lowest ? series * power : T(0);
    return d == d ? e : d;
  }
};

/// Computes ln x to 2 units in the last place: -inf for 0, NaN for a negative number. Meant for sums of exponentials: a
/// subnormal x counts as 0.
struct natural_log {
  /// Returns ln x.
  template <stdlib::floating_point T>
  GIWA_HOST_DEVICE constexpr T operator()(T x) const {
    using format = detail::binary_format<T>;
    using bits = typename format::bits;
    if (!(x > 0)) return x == 0 ? -detail::infinity_of<T> : detail::nan_of<T>;
    if (x == detail::infinity_of<T>) return x;
    const bits raw = __builtin_bit_cast(bits, x);
    constexpr bits one = static_cast<bits>(format::bias) << format::fraction;
    bits exponent = (raw >> format::fraction) - format::bias;
    if (exponent == -format::bias) return -detail::infinity_of<T>;
    T f = __builtin_bit_cast(T, static_cast<bits>((raw & ((bits{1} << format::fraction) - 1)) | one));  // in [1, 2)
    if (f > T(1.41421356237309504880)) {
      f *= T(0.5);
      ++exponent;
    }
    // ln f = 2 atanh(z), z = (f - 1) / (f + 1), |z| < 0.172
    const T z = (f - T(1)) / (f + T(1)), square = z * z;
    T series = 0;
    for (int k = format::log_terms; k >= 0; --k) series = series * square + T(1) / static_cast<T>(2 * k + 1);
    const T n = static_cast<T>(exponent);
    return n * format::ln2_high + (n * format::ln2_low + T(2) * z * series);
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
