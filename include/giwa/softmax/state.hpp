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

namespace detail {

/// The end of a row of attention. The output is factor * (sum of e^(x - m) v) + prior_factor * prior_o.
template <class T>
struct finished_softmax {
  T factor, prior_factor;  // 0 where there is nothing to multiply
  T lse;                   // of everything together
};

struct plain_reciprocal {
  template <class T>
  GIWA_HOST_DEVICE constexpr T operator()(T x) const {
    return T(1) / x;
  }
};

/// Adds more keys to a row that is finished without them: `factor` normalizes its output, `lse` is its log-sum-exp, and
/// l is NaN if the row is. `prior_lse` is the log-sum-exp of the other keys: of keys that were attended to before,
/// whose output prior_o is normalized, or a sink, which is one key with this score and the value 0. -inf means no keys;
/// NaN and +inf make the row NaN. Exp computes e^d for d <= 0, Log ln x and Reciprocal 1 / x, both for x in [1, 2].
template <class T, class Exp = exponential, class Log = natural_log, class Reciprocal = plain_reciprocal>
GIWA_HOST_DEVICE constexpr finished_softmax<T> with_prior(T l, T factor, T lse, T prior_lse, const Exp& exp = {},
                                                          const Log& log = {}, const Reciprocal& reciprocal = {}) {
  // With s the sum of the row, its share is s / (s + e^prior_lse), computed from the difference of their logarithms.
  const T larger = lse > prior_lse ? lse : prior_lse, smaller = lse > prior_lse ? prior_lse : lse;
  const T ratio = smaller == -infinity_of<T> ? T(0) : exp(smaller - larger);
  T prior_factor = 0;
  if (prior_lse != -infinity_of<T>) prior_factor = reciprocal(T(1) + ratio) * (lse > prior_lse ? ratio : T(1));
  if (factor != 0) factor *= reciprocal(T(1) + ratio) * (lse > prior_lse ? T(1) : ratio);
  if (larger > -infinity_of<T>) lse = larger + log(T(1) + ratio);
  if (l != l || !(prior_lse < infinity_of<T>)) lse = factor = prior_factor = nan_of<T>;
  return {factor, prior_factor, lse};
}

/// Computes the end of a row with the state (m, l) of its keys. `sink` is the score of a key whose value is 0, -inf for none.
/// `prior_lse` is the log-sum-exp of keys that were attended to before, whose output prior_o is normalized; -inf for
/// none. NaN and +inf in any of them make the row NaN. Exp is as for softmax_state, Log computes ln x.
template <class T, class Exp = exponential, class Log = natural_log>
GIWA_HOST_DEVICE constexpr finished_softmax<T> finish(T m, T l, T sink, T prior_lse = -infinity_of<T>,
                                                      const Exp& exp = {}, const Log& log = {}) {
  const softmax_state<T> keys{m, l};
  const finished_softmax<T> own = with_prior(l, keys.normalizer(), keys.lse(log), sink, exp, log);
  return with_prior(l, own.factor, own.lse, prior_lse, exp, log);
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
