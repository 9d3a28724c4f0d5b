// SPDX-License-Identifier: MIT
// The gradient of one score: P, the slope of the score modifier, and what a modifier receives for the tensors that it reads.
#ifndef GIWA_ATTENTION_PROBLEM_SCORE_GRADIENT_HPP
#define GIWA_ATTENTION_PROBLEM_SCORE_GRADIENT_HPP

#include <giwa/attention/problem/dropout.hpp>
#include <giwa/attention/problem/views.hpp>
#include <giwa/numeric/overlap.hpp>

namespace giwa::inline GIWA_ABI {

/// Which scores have the same element in the gradient of a tensor that a score modifier reads.
struct gradient_sharing {
  bool sequences = false;  ///< those of all sequences
  bool heads = false;      ///< those of all heads
};

namespace detail {

/// A score modifier that receives, for each score that is kept, the gradient with respect to the modified score:
/// `void gradient(float dy, attention_coord c) const`.
template <class F>
concept takes_gradient = requires(const F& f, float dy, attention_coord c) { f.gradient(dy, c); };

/// One whose gradient() is not called for two sequences, or heads, at the same time if they share its elements:
/// `gradient_sharing shared() const`. They come one after the other, in order.
template <class F>
concept shares_gradient = requires(const F& f) {
  { f.shared() } -> stdlib::same_as<gradient_sharing>;
};

/// The number of parameters of each head that a modifier computes gradients of.
template <class F>
inline constexpr int own_parameters = 0;
template <class F>
  requires requires { F::parameters; }
inline constexpr int own_parameters<F> = F::parameters;

/// A score modifier with all that the gradients of its parameters need:
/// `void parameter_slopes(float score, attention_coord c, float (&slopes)[parameters]) const`, the derivatives of the
/// modified score, and a member `tensor_view<float, 2> parameter_gradients`, (heads, parameters).
template <class F>
concept has_parameters =
    (own_parameters<F> > 0) && requires(const F& f, float score, attention_coord c,
                                        float (&slopes)[own_parameters<F> > 0 ? own_parameters<F> : 1]) {
      f.parameter_slopes(score, c, slopes);
      { f.parameter_gradients } -> stdlib::convertible_to<const tensor_view<float, 2>&>;
    };

/// What a modifier, or its parts, compute gradients of: whether there is any (`wanted`), the number of parameters of each
/// head, and the call that gives the gradient of one score: of then(a, b), b gets dy, and a gets dy times the slope of b at
/// a(z). `z` is the score before the modifier. give() adds to `sums`, the gradients of the parameters of one row.
template <class F>
struct gradient_of {
  static constexpr int parameters = own_parameters<F>;
  static constexpr bool wanted = takes_gradient<F> || parameters > 0;
  static constexpr bool complete = parameters == 0 || has_parameters<F>,
                        may_share = shares_gradient<F> && takes_gradient<F>;

  template <class Real>  // fp64 in the reference
  GIWA_HOST_DEVICE static void give(const F& f, Real dy, [[maybe_unused]] float z, attention_coord c,
                                    [[maybe_unused]] Real* sums) {
    if constexpr (takes_gradient<F>) f.gradient(static_cast<float>(dy), c);
    if constexpr (parameters > 0) {
      float slopes[stdlib::size_t{parameters}];
      f.parameter_slopes(z, c, slopes);
      GIWA_UNROLL
      for (int i = 0; i < parameters; ++i) sums[i] += dy * static_cast<Real>(slopes[i]);
    }
  }
  GIWA_HOST_DEVICE static constexpr gradient_sharing shared([[maybe_unused]] const F& f) {
    if constexpr (may_share)
      return f.shared();
    else
      return {};
  }
  /// The gradient of parameter i of a head.
  GIWA_HOST_DEVICE static float& output(const F& f, int i, int head) {
    const tensor_view<float, 2>& to = f.parameter_gradients;
    return to.data()[head * to.stride(0) + i * to.stride(1)];
  }
  /// visit(view, parameters) for each tensor of gradients of parameters.
  template <class Visit>
  GIWA_HOST_DEVICE static constexpr void for_each_output([[maybe_unused]] const F& f,
                                                         [[maybe_unused]] const Visit& visit) {
    if constexpr (parameters > 0) visit(f.parameter_gradients, parameters);
  }
};
template <class First, class Second>
struct gradient_of<then<First, Second>> {
  using first = gradient_of<First>;
  using second = gradient_of<Second>;
  static constexpr int parameters = first::parameters + second::parameters;
  static constexpr bool wanted = first::wanted || second::wanted, complete = first::complete && second::complete,
                        may_share = first::may_share || second::may_share;

  template <class Real>
  GIWA_HOST_DEVICE static void give(const then<First, Second>& f, Real dy, float z, attention_coord c, Real* sums) {
    const float y = f.first(z, c);
    if constexpr (second::wanted) second::give(f.second, dy, y, c, sums + first::parameters);
    if constexpr (first::wanted)
      first::give(f.first, dy * static_cast<Real>(value_and_slope(f.second, y, c).slope), z, c, sums);
  }
  GIWA_HOST_DEVICE static constexpr gradient_sharing shared(const then<First, Second>& f) {
    const gradient_sharing a = first::shared(f.first), b = second::shared(f.second);
    return {a.sequences || b.sequences, a.heads || b.heads};
  }
  GIWA_HOST_DEVICE static float& output(const then<First, Second>& f, int i, int head) {
    if constexpr (first::parameters == 0)
      return second::output(f.second, i, head);
    else if constexpr (second::parameters == 0)
      return first::output(f.first, i, head);
    else
      return i < first::parameters ? first::output(f.first, i, head)
                                   : second::output(f.second, i - first::parameters, head);
  }
  template <class Visit>
  GIWA_HOST_DEVICE static constexpr void for_each_output(const then<First, Second>& f, const Visit& visit) {
    first::for_each_output(f.first, visit);
    second::for_each_output(f.second, visit);
  }
};

/// What the modifier in a dropout computes gradients of: dy already has the dropped weights.
template <class Score>
struct gradient_of<dropout<Score>> : gradient_of<Score> {};

/// The rule for the type of a score modifier with parameters.
template <class Score>
GIWA_HOST_DEVICE constexpr void require_parameter_slopes() {
  static_assert(
      gradient_of<Score>::complete,
      "giwa::attention_backward: a score modifier with parameters also has void parameter_slopes(float score, "
      "giwa::attention_coord c, float (&slopes)[parameters]) const and a member giwa::tensor_view<float, 2> "
      "parameter_gradients.");
}

/// The modified score and its slope; a plain score has the literal 1.
template <class Score>
GIWA_HOST_DEVICE dual<float> modified_score(const Score& score, float z, attention_coord c) {
  if constexpr (is_plain_score<Score>)
    return {z, 1.0f};
  else
    return value_and_slope(score, z, c);
}

}  // namespace detail

/// Adds a linear bias by distance as alibi does; attention_backward writes the gradient of the slopes, one for each head:
/// `alibi_with_gradient(slopes, gradient)`.
struct alibi_with_gradient {
  static constexpr int parameters = 1;        ///< of each head
  alibi values;                               ///< the slopes (heads), the same for all sequences
  tensor_view<float, 2> parameter_gradients;  ///< (heads, 1)
  alignment align{};                          ///< of the diagonal; must be set where the lengths differ

  /// The slopes (heads) and their gradient (heads), readable and writable by the kernel.
  GIWA_HOST_DEVICE constexpr alibi_with_gradient(const float* slopes, const tensor_view<float, 1>& gradient,
                                                 alignment a = {})
      : values{slopes, 0, a},
        parameter_gradients(gradient.data(), {gradient.extent(0), 1}, {gradient.stride(0), 1}),
        align(a) {}

  /// See score_modifier.
  ///@{
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const { return values(score, c); }
  template <detail::dual_number Number>
  GIWA_HOST_DEVICE Number operator()(Number score, attention_coord c) const {
    return values(score, c);
  }
  GIWA_HOST_DEVICE void parameter_slopes(float, attention_coord c, float (&slopes)[1]) const {
    slopes[0] = -static_cast<float>(c.diagonal > c.key ? c.diagonal - c.key : c.key - c.diagonal);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    if (const status own = values.check(s); !own.ok()) return own;
    return detail::check_apart(parameter_gradients, tensor_view<const float, 1>(values.slopes, {s.heads}),
                               "parameter_gradients", "the gradient overlaps the slopes");
  }
  ///@}
};

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
/// What check_slope() found at the score where the slope is furthest from the difference quotient.
struct slope_check {
  float score = 0;       ///< where
  float slope = 0;       ///< what the modifier gives there
  float difference = 0;  ///< (f(score + h) - f(score - h)) / 2 h
  bool ok = true;        ///< whether they agree everywhere to `tolerance` times (1 + |slope|)
};

/// Compares the slope of a score modifier with central differences at 257 scores, for a test of a custom modifier:
/// `check_slope(my_score{...}, {.head = 1, .query = 5, .key = 3}, -20, 20).ok`.
/// Parameters:
///   - score, at: the modifier, whose memory must be host memory, and where it is called
///   - low, high, tolerance: the scores, in steps of 1/512 of the range (keep corners out), and what slope_check::ok allows
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
