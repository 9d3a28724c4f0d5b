// SPDX-License-Identifier: MIT
// The state of a softmax in progress, largest value and sum of exponentials, as a monoid.
#ifndef GIWA_SOFTMAX_STATE_HPP
#define GIWA_SOFTMAX_STATE_HPP

#include <giwa/softmax/exponential.hpp>

namespace giwa::inline GIWA_ABI {

/// The softmax state (m, l) of some elements x of a row: m = max x, l = sum of e^(x - m). The states of parts merge to
/// the state of the whole, in any order and grouping up to rounding (Milakov and Gimelshein, "Online normalizer
/// calculation for softmax", 2018, theorem 1). Special values:
///   no element, or only -inf  max = -inf, sum = 0: the identity of merge(); every weight is 0, lse() is -inf
///   a NaN                     sum is NaN, and so are all weights and lse(); max ignores it
///   a +inf                    max = +inf, sum is NaN: e^(inf - inf) has no value, as in PyTorch
/// Exp computes e^d for d <= 0, d = -inf and NaN included, with e^0 = 1 exactly.
template <stdlib::floating_point T>
struct softmax_state {
  T max = -detail::infinity_of<T>;  ///< m
  T sum = 0;                        ///< l

  /// Returns the state of one element.
  GIWA_HOST_DEVICE static constexpr softmax_state of(T x) {
    if (x == -detail::infinity_of<T>) return {};
    const T zero = x - x;  // NaN for +inf and for NaN
    return {x == x ? x : -detail::infinity_of<T>, zero + T(1)};
  }

  /// Returns the number that exponents are relative to: max, or 0 for an empty state, because -inf - -inf has no value.
  GIWA_HOST_DEVICE constexpr T reference() const { return max == -detail::infinity_of<T> ? T(0) : max; }

  /// Returns the state of the same elements relative to `larger` >= max: sum becomes the sum of e^(x - larger).
  template <class Exp = exponential>
  GIWA_HOST_DEVICE constexpr softmax_state rescale(T larger, const Exp& exp = {}) const {
    const T factor = larger == -detail::infinity_of<T> ? T(1) : exp(max - larger);
    return {larger, sum * factor};
  }

  /// Returns the state of the elements of `a` and `b` together.
  template <class Exp = exponential>
  GIWA_HOST_DEVICE static constexpr softmax_state merge(const softmax_state& a, const softmax_state& b,
                                                        const Exp& exp = {}) {
    const T larger = a.max > b.max ? a.max : b.max;
    return {larger, a.rescale(larger, exp).sum + b.rescale(larger, exp).sum};
  }

  /// Returns the log-sum-exp ln(sum of e^x), natural logarithm; -inf for an empty state.
  template <class Log = natural_log>
  GIWA_HOST_DEVICE constexpr T lse(const Log& log = {}) const {
    return sum == 0 ? -detail::infinity_of<T> : max + log(sum);
  }

  /// Returns the factor that turns e^(x - max) into the softmax of x: 1 / sum, or 0 for an empty state.
  GIWA_HOST_DEVICE constexpr T normalizer() const { return sum == 0 ? T(0) : T(1) / sum; }
};

}  // namespace giwa::inline GIWA_ABI

#endif
