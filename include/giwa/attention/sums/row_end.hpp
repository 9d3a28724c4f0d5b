// SPDX-License-Identifier: MIT
// The end of a row of attention: what its output is multiplied by, and its log-sum-exp, with a sink and with earlier keys.
#ifndef GIWA_ATTENTION_SUMS_ROW_END_HPP
#define GIWA_ATTENTION_SUMS_ROW_END_HPP

#include <giwa/softmax/state.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The end of a row. The output is factor * (sum of e^(x - m) v) + prior_factor * prior_o.
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

/// What the end of a row computes with: e^d for d <= 0, ln x, and 1 / x.
template <class Exp = exponential, class Log = natural_log, class Reciprocal = plain_reciprocal>
struct row_functions {
  Exp exp;
  Log log;
  Reciprocal reciprocal;
};

/// Adds more keys to a row that is finished without them: `factor` normalizes its output, `lse` is its log-sum-exp, and
/// l is NaN if the row is. `more_lse` is the log-sum-exp of the other keys: of keys that were attended to before,
/// whose output prior_o is normalized, or a sink, which is one key with this score and the value 0. -inf means no keys;
/// NaN and +inf make the row NaN.
template <class T, class Functions = row_functions<>>
GIWA_HOST_DEVICE constexpr finished_softmax<T> with_prior(T l, T factor, T lse, T more_lse, const Functions& f = {}) {
  // With s the sum of the row, its share is s / (s + e^more_lse), computed from the difference of their logarithms.
  const T larger = lse > more_lse ? lse : more_lse, smaller = lse > more_lse ? more_lse : lse;
  const T ratio = smaller == -infinity_of<T> ? T(0) : f.exp(smaller - larger);
  T more_factor = 0;
  if (more_lse != -infinity_of<T>) more_factor = f.reciprocal(T(1) + ratio) * (lse > more_lse ? ratio : T(1));
  if (factor != 0) factor *= f.reciprocal(T(1) + ratio) * (lse > more_lse ? T(1) : ratio);
  if (larger > -infinity_of<T>) lse = larger + f.log(T(1) + ratio);
  if (l != l || !(more_lse < infinity_of<T>)) lse = factor = more_factor = nan_of<T>;
  return {factor, more_factor, lse};
}

/// Computes the end of a row with the state (m, l) of its keys, a sink and a prior, each -inf for none.
template <class T, class Functions = row_functions<>>
GIWA_HOST_DEVICE constexpr finished_softmax<T> finish_row(const softmax_state<T>& keys, T sink,
                                                          T prior_lse = -infinity_of<T>, const Functions& f = {}) {
  const finished_softmax<T> own = with_prior(keys.sum, keys.normalizer(), keys.lse(f.log), sink, f);
  return with_prior(keys.sum, own.factor, own.lse, prior_lse, f);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
