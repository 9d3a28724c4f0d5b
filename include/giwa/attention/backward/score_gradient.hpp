// SPDX-License-Identifier: MIT
// The gradient of one score: P, the slope of the score modifier, and what a modifier receives for the tensors that it reads.
#ifndef GIWA_ATTENTION_BACKWARD_SCORE_GRADIENT_HPP
#define GIWA_ATTENTION_BACKWARD_SCORE_GRADIENT_HPP

#include <giwa/attention/problem/score.hpp>
#include <giwa/attention/problem/view_checks.hpp>
#include <giwa/numeric/overlap.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The gradient that a kernel computes.
enum class gradient : int { of_q, of_k, of_v, of_k_and_v };

/// A score modifier that receives, for each score that is kept, the gradient with respect to the modified score:
/// `void gradient(float dy, attention_coord c) const`.
template <class F>
concept takes_gradient = requires(const F& f, float dy, attention_coord c) { f.gradient(dy, c); };

/// Whether some part of a modifier takes a gradient, and the call that gives it: of then(a, b), b gets dy, and a gets dy
/// times the slope of b at a(z). `z` is the score before the modifier.
template <class F>
struct gradient_of {
  static constexpr bool wanted = takes_gradient<F>;
  GIWA_HOST_DEVICE static void give(const F& f, float dy, float /*z*/, attention_coord c) {
    if constexpr (wanted) f.gradient(dy, c);
  }
};
template <class First, class Second>
struct gradient_of<then<First, Second>> {
  static constexpr bool wanted = gradient_of<First>::wanted || gradient_of<Second>::wanted;
  GIWA_HOST_DEVICE static void give(const then<First, Second>& f, float dy, float z, attention_coord c) {
    const float y = f.first(z, c);
    if constexpr (gradient_of<Second>::wanted) gradient_of<Second>::give(f.second, dy, y, c);
    if constexpr (gradient_of<First>::wanted)
      gradient_of<First>::give(f.first, dy * value_and_slope(f.second, y, c).slope, z, c);
  }
};

/// The modified score and its slope; a plain score has the literal 1.
template <class Score>
GIWA_HOST_DEVICE dual<float> modified_score(const Score& score, float z, attention_coord c) {
  if constexpr (stdlib::same_as<Score, plain_score>)
    return {z, 1.0f};
  else
    return value_and_slope(score, z, c);
}

}  // namespace detail

/// Adds a tensor to the scores as bias does; attention_backward writes the gradient of that tensor to another one.
/// `bias_with_gradient(values, gradient)`.
///
/// Both are (batch, heads, queries, keys) of any strides, with all sizes those of the problem: each score has its own
/// element, so that no two are added and the bits do not depend on an order. For a tensor that sequences or heads share,
/// sum the gradient afterwards. An element is written where the mask keeps its score; others are left as they are, so
/// set the gradient to 0 before the call.
template <class T, class G>
struct bias_with_gradient {
  static_assert(floating_element<G> && !stdlib::is_const_v<G>,
                "giwa::bias_with_gradient: the gradient must be a view of fp16, bf16, fp32 or fp64 that is not const.");
  bias<T> values;               ///< (batch, heads, queries, keys)
  tensor_view<G, 4> gradient_;  ///< (batch, heads, queries, keys)

  /// Two tensors, readable and writable by the kernel.
  GIWA_HOST_DEVICE constexpr bias_with_gradient(const tensor_view<const T, 4>& values_view,
                                                const tensor_view<G, 4>& gradient_view)
      : values(values_view), gradient_(gradient_view) {}

  /// See score_modifier.
  ///@{
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const { return values(score, c); }
  template <detail::dual_number Number>
  GIWA_HOST_DEVICE Number operator()(Number score, attention_coord c) const {
    return values(score, c);
  }
  ///@}
  /// Writes the gradient of one element.
  GIWA_HOST_DEVICE void gradient(float dy, attention_coord c) const {
    gradient_.data()[c.batch * gradient_.stride(0) + c.head * gradient_.stride(1) + c.query * gradient_.stride(2) +
                     c.key * gradient_.stride(3)] = convert<G>{}(dy);
  }
  /// See score_modifier.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    if (const status own = values.check(s); !own.ok()) return own;
    if (const status own = gradient_.check("bias gradient"); !own.ok()) return own;
    const int64 sizes[4] = {s.batch, s.heads, s.seq_q, s.seq_k};
    for (int d = 0; d < 4; ++d) {
      if (sizes[d] < 0)
        return status::invalid("bias gradient", "packed sequences have no gradient of a bias: use tensors of rank 4");
      if (gradient_.extent(d) != sizes[d] || values.values.extent(d) != sizes[d])
        return status::invalid(
            "bias gradient", "each size of the bias and of its gradient must be that of (batch, heads, queries, keys)",
            bound::exactly, sizes[d], gradient_.extent(d) != sizes[d] ? gradient_.extent(d) : values.values.extent(d));
    }
    if (const status own =
            detail::check_apart(gradient_, values.values, "bias gradient", "the gradient overlaps the bias");
        !own.ok())
      return own;
    return detail::check_written(gradient_, "bias gradient");
  }
};
/// Deduces the element types.
template <class T, class G>
bias_with_gradient(const tensor_view<T, 4>&, const tensor_view<G, 4>&)
    -> bias_with_gradient<stdlib::remove_const_t<T>, G>;

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
/// What check_slope() found at the score where the slope is furthest from the difference quotient.
struct slope_check {
  float score = 0;       ///< where
  float slope = 0;       ///< what the modifier gives there
  float difference = 0;  ///< (f(score + h) - f(score - h)) / 2 h
  bool ok = true;        ///< whether they agree everywhere to `tolerance` times (1 + |slope|)
};

/// Compares the slope of a score modifier with central differences at 257 scores from `low` to `high`, for a test of a
/// custom modifier: `check_slope(my_score{...}, {.head = 1, .query = 5, .key = 3}, -20, 20).ok`. The step of a difference
/// is 1/512 of the range, so keep corners out of it. Runs on the host; memory that the modifier reads must be host memory.
template <class Score>
slope_check check_slope(const Score& score, attention_coord at, float low, float high, float tolerance = 0.01f) {
  static_assert(detail::has_slope<Score>,
                "giwa::check_slope: this score modifier gives no slope: template its operator() on the number, or add "
                "dual<float> value_and_slope(float, giwa::attention_coord) const.");
  constexpr int points = 256;
  const float step = (high - low) / (2 * points);
  const auto distance = [](const slope_check& s) {
    const float d = (s.slope - s.difference) / (1 + (s.slope < 0 ? -s.slope : s.slope));
    return d < 0 ? -d : d;
  };
  slope_check worst;
  for (int i = 0; i <= points; ++i) {
    const float x = low + static_cast<float>(i) * 2 * step;
    slope_check here{x, detail::value_and_slope(score, x, at).slope,
                     (score(x + step, at) - score(x - step, at)) / (2 * step)};
    here.ok = distance(here) <= tolerance;  // false for NaN
    if (i == 0 || (worst.ok && !here.ok) || (worst.ok == here.ok && distance(here) > distance(worst))) worst = here;
  }
  return worst;
}

#endif

}  // namespace giwa::inline GIWA_ABI

#endif
