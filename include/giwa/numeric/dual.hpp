// SPDX-License-Identifier: MIT
// Dual numbers: a value with its slope, so that a function templated on the number also computes its derivative.
#ifndef GIWA_NUMERIC_DUAL_HPP
#define GIWA_NUMERIC_DUAL_HPP

#include <giwa/numeric/trigonometry.hpp>

namespace giwa::inline GIWA_ABI {

/// A value and its derivative with respect to some input x: `f(dual<float>{x, 1})` has the value f(x) and the slope f'(x).
/// A plain number converts to a dual of slope 0. A dual never converts to a plain number, which would lose the slope:
/// static_cast<float>(d) does not compile.
///
/// Arithmetic and comparisons (of the values) work between duals and with plain numbers. Call functions without a
/// namespace, so that the argument chooses: fabs, fmin, fmax, copysign, exp, exp2, log, sqrt, tanh, sin, cos. Where a
/// function has a corner (fabs at 0, fmin and fmax of equal numbers) the slope is that of one side. sin and cos of a
/// dual<float> are those of numeric/trigonometry.hpp; the other functions are those of the CUDA library on the device
/// and of the C library on the host.
/// Source: Clifford 1873; Griewank and Walther, "Evaluating Derivatives" (2008), chapter 3 (forward mode).
template <stdlib::floating_point T>
struct dual {
  T value{};  ///< f(x)
  T slope{};  ///< f'(x)

  /// Zero.
  constexpr dual() = default;
  /// A value and its slope.
  GIWA_HOST_DEVICE constexpr dual(T value_, T slope_) : value(value_), slope(slope_) {}
  /// A number that does not depend on x.
  template <class Number>
    requires(stdlib::is_arithmetic_v<Number>)
  GIWA_HOST_DEVICE constexpr dual(Number number) : value(static_cast<T>(number)) {}

  /// Arithmetic, by the rules of derivatives.
  ///@{
  GIWA_HOST_DEVICE friend constexpr dual operator-(const dual& a) { return {-a.value, -a.slope}; }
  GIWA_HOST_DEVICE friend constexpr dual operator+(const dual& a, const dual& b) {
    return {a.value + b.value, a.slope + b.slope};
  }
  GIWA_HOST_DEVICE friend constexpr dual operator-(const dual& a, const dual& b) {
    return {a.value - b.value, a.slope - b.slope};
  }
  GIWA_HOST_DEVICE friend constexpr dual operator*(const dual& a, const dual& b) {
    return {a.value * b.value, a.slope * b.value + a.value * b.slope};
  }
  GIWA_HOST_DEVICE friend constexpr dual operator/(const dual& a, const dual& b) {
    const T quotient = a.value / b.value;
    return {quotient, (a.slope - quotient * b.slope) / b.value};
  }
  GIWA_HOST_DEVICE constexpr dual& operator+=(const dual& b) { return *this = *this + b; }
  GIWA_HOST_DEVICE constexpr dual& operator-=(const dual& b) { return *this = *this - b; }
  GIWA_HOST_DEVICE constexpr dual& operator*=(const dual& b) { return *this = *this * b; }
  GIWA_HOST_DEVICE constexpr dual& operator/=(const dual& b) { return *this = *this / b; }
  ///@}

  /// Comparisons of the values.
  ///@{
  GIWA_HOST_DEVICE friend constexpr bool operator==(const dual& a, const dual& b) { return a.value == b.value; }
  GIWA_HOST_DEVICE friend constexpr bool operator<(const dual& a, const dual& b) { return a.value < b.value; }
  GIWA_HOST_DEVICE friend constexpr bool operator>(const dual& a, const dual& b) { return a.value > b.value; }
  GIWA_HOST_DEVICE friend constexpr bool operator<=(const dual& a, const dual& b) { return a.value <= b.value; }
  GIWA_HOST_DEVICE friend constexpr bool operator>=(const dual& a, const dual& b) { return a.value >= b.value; }
  ///@}

  /// fmin and fmax choose one of the two, with its slope; copysign gives the magnitude of `a` the sign of `b`.
  ///@{
  GIWA_HOST_DEVICE friend constexpr dual fmin(const dual& a, const dual& b) { return b.value < a.value ? b : a; }
  GIWA_HOST_DEVICE friend constexpr dual fmax(const dual& a, const dual& b) { return b.value > a.value ? b : a; }
  GIWA_HOST_DEVICE friend constexpr dual fabs(const dual& a) { return a.value < T(0) ? -a : a; }
  GIWA_HOST_DEVICE friend constexpr dual copysign(const dual& a, const dual& b) {
    return (a.value < T(0)) == (b.value < T(0)) ? a : -a;
  }
  ///@}
};

// The math function of this pass for float and for double.
#if defined(__CUDA_ARCH__)
#define GIWA_DETAIL_MATH(T, name, x) \
  ((sizeof(T) == 4) ? static_cast<T>(::name##f(static_cast<float>(x))) : static_cast<T>(::name(x)))
#else
#define GIWA_DETAIL_MATH(T, name, x) \
  ((sizeof(T) == 4) ? static_cast<T>(__builtin_##name##f(static_cast<float>(x))) : static_cast<T>(__builtin_##name(x)))
#endif

namespace detail {
template <class T>
struct sine_and_cosine {
  GIWA_HOST_DEVICE static T sine(T x) { return GIWA_DETAIL_MATH(T, sin, x); }
  GIWA_HOST_DEVICE static T cosine(T x) { return GIWA_DETAIL_MATH(T, cos, x); }
};
template <>
struct sine_and_cosine<float> {
  GIWA_HOST_DEVICE static float sine(float x) { return sine_with_sign(x); }
  GIWA_HOST_DEVICE static float cosine(float x) { return sine_of_reduced(x, 1); }
};
}  // namespace detail

/// Functions of a dual, with their derivatives.
///@{
template <class T>
GIWA_HOST_DEVICE dual<T> exp(const dual<T>& a) {
  const T e = GIWA_DETAIL_MATH(T, exp, a.value);
  return {e, e * a.slope};
}
template <class T>
GIWA_HOST_DEVICE dual<T> exp2(const dual<T>& a) {
  const T e = GIWA_DETAIL_MATH(T, exp2, a.value);
  return {e, e * static_cast<T>(0.693147180559945309417) * a.slope};
}
template <class T>
GIWA_HOST_DEVICE dual<T> log(const dual<T>& a) {
  return {GIWA_DETAIL_MATH(T, log, a.value), a.slope / a.value};
}
template <class T>
GIWA_HOST_DEVICE dual<T> sqrt(const dual<T>& a) {
  const T root = GIWA_DETAIL_MATH(T, sqrt, a.value);
  return {root, a.slope / (2 * root)};
}
template <class T>
GIWA_HOST_DEVICE dual<T> tanh(const dual<T>& a) {
  const T t = GIWA_DETAIL_MATH(T, tanh, a.value);
  return {t, (1 - t * t) * a.slope};
}
template <class T>
GIWA_HOST_DEVICE dual<T> sin(const dual<T>& a) {
  return {detail::sine_and_cosine<T>::sine(a.value), detail::sine_and_cosine<T>::cosine(a.value) * a.slope};
}
template <class T>
GIWA_HOST_DEVICE dual<T> cos(const dual<T>& a) {
  return {detail::sine_and_cosine<T>::cosine(a.value), -detail::sine_and_cosine<T>::sine(a.value) * a.slope};
}
///@}
#undef GIWA_DETAIL_MATH

}  // namespace giwa::inline GIWA_ABI

#endif
