// SPDX-License-Identifier: MIT
// Score modifiers: functions of a score, between the scale and the mask.
#ifndef GIWA_ATTENTION_PROBLEM_SCORE_HPP
#define GIWA_ATTENTION_PROBLEM_SCORE_HPP

#include <giwa/arch/math.hpp>
#include <giwa/attention/problem/coordinate.hpp>
#include <giwa/attention/problem/mask.hpp>
#include <giwa/numeric/dual.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/softmax/exponential.hpp>

namespace giwa::inline GIWA_ABI {

/// A score modifier is any trivially copyable callable, `GIWA_HOST_DEVICE float operator()(float score, attention_coord
/// c) const`, that returns the new score. It is called with the scaled score, before the mask, and only for queries and
/// keys of the sequence: for scores past their end it may be called with the last of them, and what it returns is not
/// used. Memory that it reads must be readable by the kernel. Two members are optional:
/// - `giwa::alignment align`: it depends on the diagonal, which the caller must choose where the lengths differ.
/// - `status check(const attention_sizes& s) const`: the first rule that it breaks for a problem of these sizes.
///
/// attention_backward also needs its slope, the derivative with respect to the score, in one of two forms:
/// - operator() templated on the number, `template <class Number> Number operator()(Number score, attention_coord c)
///   const`, or a generic lambda: it is called with a dual<float>.
/// - `dual<float> value_and_slope(float score, attention_coord c) const`, which comes first where both exist.
template <class F>
concept score_modifier = requires(const F& f, float score, attention_coord c) {
  { f(score, c) } -> stdlib::same_as<float>;
};

struct plain_score;
template <score_modifier First, score_modifier Second>
struct then;

namespace detail {
/// Whether a score modifier leaves every score as it is. (dropout.hpp and rotated_queries.hpp add some.)
template <class F>
inline constexpr bool is_plain_score = stdlib::same_as<F, plain_score>;
/// Whether a call drops weights: the score modifier is a dropout. (dropout.hpp)
template <class F>
inline constexpr bool drops_weights = false;
/// Whether a dropout is inside of another modifier, where no call looks for it.
template <class F>
inline constexpr bool hides_dropout = false;
template <class First, class Second>
inline constexpr bool hides_dropout<then<First, Second>> =
    drops_weights<First> || drops_weights<Second> || hides_dropout<First> || hides_dropout<Second>;
/// Whether a call rotates its queries: the score modifier is a rotated_queries. (append/rotated_queries.hpp)
template <class F>
inline constexpr bool rotates_queries = false;
/// Whether a rotation of queries is inside of another modifier, where no call looks for it.
template <class F>
inline constexpr bool hides_rotation = false;
template <class First, class Second>
inline constexpr bool hides_rotation<then<First, Second>> =
    rotates_queries<First> || rotates_queries<Second> || hides_rotation<First> || hides_rotation<Second>;

/// The numbers other than float that the built-in modifiers take.
template <class Number>
concept dual_number = stdlib::same_as<Number, dual<float>> || stdlib::same_as<Number, dual<double>>;

template <class F>
concept gives_value_and_slope = requires(const F& f, float score, attention_coord c) {
  { f.value_and_slope(score, c) } -> stdlib::same_as<dual<float>>;
};
template <class F, class T>
concept takes_dual = requires(const F& f, dual<T> score, attention_coord c) {
  { f(score, c) } -> stdlib::same_as<dual<T>>;
};
/// A score modifier that attention_backward can differentiate.
template <class F>
concept has_slope = gives_value_and_slope<F> || takes_dual<F, float>;

/// The modified score and its derivative with respect to `score`.
template <has_slope F>
GIWA_HOST_DEVICE constexpr dual<float> value_and_slope(const F& f, float score, attention_coord c) {
  if constexpr (gives_value_and_slope<F>)
    return f.value_and_slope(score, c);
  else
    return f(dual<float>{score, 1.0f}, c);
}

/// The rules for the types of a mask and a score modifier.
template <class Mask, class Score>
GIWA_HOST_DEVICE constexpr void require_mask_and_score() {
  static_assert(attention_mask<Mask>, "giwa: a mask is called with (giwa::attention_coord) and returns bool.");
  static_assert(!one_range_mask<Mask> || has_first_key<Mask> || has_last_key<Mask>,
                "giwa: a mask that is one_range has first_key(giwa::attention_coord) const, "
                "last_key(giwa::attention_coord) const, or both.");
  static_assert(score_modifier<Score>,
                "giwa: a score modifier is called with (float, giwa::attention_coord) and returns float.");
  static_assert(!hides_dropout<Score>,
                "giwa: dropout comes last: giwa::dropout(probability, seed, giwa::then(first, second)).");
  static_assert(!hides_rotation<Score>,
                "giwa: rotated_queries comes last: giwa::rotated_queries(rotary, giwa::then(first, second)).");
}
/// The same for a call that rotates no queries.
template <class Mask, class Score>
GIWA_HOST_DEVICE constexpr void require_mask_and_plain_queries() {
  require_mask_and_score<Mask, Score>();
  static_assert(!rotates_queries<Score>,
                "giwa: only attention_cached takes rotated_queries: rotate q and k before this call.");
}
}  // namespace detail

/// Leaves the score as it is.
struct plain_score {
  /// See score_modifier.
  ///@{
  GIWA_HOST_DEVICE constexpr float operator()(float score, attention_coord) const { return score; }
  template <detail::dual_number Number>
  GIWA_HOST_DEVICE constexpr Number operator()(Number score, attention_coord) const {
    return score;
  }
  ///@}
};

/// Caps the score: cap * tanh(score / cap), which is between -cap and cap. (Gemma 2; Bello et al. 2016.)
class softcap {
 public:
  /// The cap, from 1e-30 to 1e30; the call refuses others.
  GIWA_HOST_DEVICE explicit constexpr softcap(float cap) : cap_(cap), rate_(-2.88539008177792681472f / cap) {}

  /// See score_modifier.
  ///@{
  GIWA_HOST_DEVICE float operator()(float score, attention_coord) const {
    // tanh |x| = 1 - 2 e / (1 + e) with e = 2^(-2 log2(e) |x|). The error is at most 7 * 2^-24 of the cap: near 0 it
    // loses digits that a score of the size of the cap does not have either.
#if defined(__CUDA_ARCH__)
    // The compiler's quotient and exponential take twice the time, for ranges that do not occur here.
    const float e = arch::exp2_approximate(::fabsf(score) * rate_);
    return ::copysignf(cap_ - 2.0f * cap_ * (e * arch::reciprocal_approximate(1.0f + e)), score);
#else
    const float e = exponential{}((score < 0 ? score : -score) / cap_ * 2.0f);
    const float size = cap_ - 2.0f * cap_ * (e / (1.0f + e));
    return score < 0 ? -size : size;
#endif
  }
  template <detail::dual_number Number>
  GIWA_HOST_DEVICE Number operator()(Number score, attention_coord) const {
    return tanh(score / cap_) * cap_;
  }
  GIWA_HOST_DEVICE dual<float> value_and_slope(float score, attention_coord c) const {
    // The slope is 1 - tanh^2 = 4 r (1 - r) with r = e / (1 + e), which loses no digits far from 0.
#if defined(__CUDA_ARCH__)
    const float e = arch::exp2_approximate(::fabsf(score) * rate_), r = e * arch::reciprocal_approximate(1.0f + e);
#else
    const float e = exponential{}((score < 0 ? score : -score) / cap_ * 2.0f), r = e / (1.0f + e);
#endif
    return {(*this)(score, c), 4.0f * r * (1.0f - r)};
  }
  ///@}
  /// See score_modifier.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    constexpr float least = 1e-30f, most = 1e30f;  // beyond, quotients leave the range of float
    static_cast<void>(rate_);                      // Clang would warn of a member that the host does not use
    return cap_ >= least && cap_ <= most ? status{} : status::invalid("softcap", "the cap must be from 1e-30 to 1e30");
  }

 private:
  float cap_;
  float rate_;  // on the device
};

/// Adds a linear bias by distance: score - slopes[head] * |diagonal - key|. (Press et al. 2021, "Train short, test
/// long".)
struct alibi {
  const float* slopes;     ///< (heads), or (batch, heads) with a batch stride; readable by the kernel
  int64 batch_stride = 0;  ///< elements from a sequence's slopes to the next sequence's, 0 if all share them
  alignment align{};       ///< of the diagonal; must be set where the lengths differ

  /// See score_modifier.
  ///@{
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const { return lowered(score, c); }
  template <detail::dual_number Number>
  GIWA_HOST_DEVICE Number operator()(Number score, attention_coord c) const {
    return {lowered(score.value, c), score.slope};  // as the forward pass computes it
  }
  ///@}
  /// See score_modifier.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return slopes != nullptr ? status{} : status::invalid("alibi", "the pointer to the slopes is null");
  }

 private:
  template <class T>
  GIWA_HOST_DEVICE T lowered(T score, attention_coord c) const {
    // The magnitude of a float takes no instruction, that of an integer two: a tile of 128 x 128 has 643 of them, and had 806.
    const T distance = arch::magnitude(static_cast<T>(c.diagonal - c.key));
    return score - static_cast<T>(slopes[c.batch * batch_stride + c.head]) * distance;
  }
};

/// Adds a tensor (batch, heads, queries, keys) of any strides: `bias(view)`. A dimension of size 1 is broadcast.
template <class T>
struct bias {
  static_assert(floating_element<stdlib::remove_const_t<T>>, "giwa::bias: elements must be fp16, bf16, fp32 or fp64.");
  tensor_view<const T, 4> values;  ///< (batch, heads, queries, keys)

  /// The tensor, readable by the kernel.
  GIWA_HOST_DEVICE explicit constexpr bias(const tensor_view<const T, 4>& values_) : values(values_) {}

  /// See score_modifier.
  ///@{
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const {
    const auto at = [&](int d, int i) { return values.extent(d) == 1 ? 0 : i * values.stride(d); };
    return score + convert<float>{}(values.data()[at(0, c.batch) + at(1, c.head) + at(2, c.query) + at(3, c.key)]);
  }
  template <detail::dual_number Number>
  GIWA_HOST_DEVICE Number operator()(Number score, attention_coord c) const {
    return score + Number((*this)(0.0f, c));
  }
  ///@}
  /// See score_modifier.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    if (const status own = values.check("bias"); !own.ok()) return own;
    const int64 sizes[4] = {s.batch, s.heads, s.seq_q, s.seq_k};
    for (int d = 0; d < 4; ++d) {
      if (values.extent(d) == 1) continue;
      if (sizes[d] < 0)
        return status::invalid("bias", "with packed sequences a bias must have size 1 along queries and keys",
                               bound::exactly, 1, values.extent(d));
      if (values.extent(d) != sizes[d])
        return status::invalid("bias", "each size must be 1 or that of (batch, heads, queries, keys)", bound::exactly,
                               sizes[d], values.extent(d));
    }
    return {};
  }
};
/// Deduces the element type.
template <class T>
bias(const tensor_view<T, 4>&) -> bias<stdlib::remove_const_t<T>>;

/// Applies two score modifiers, one after the other: `then(softcap{30}, bias(b))`.
template <score_modifier First, score_modifier Second>
struct then {
  First first;    ///< applied to the score
  Second second;  ///< applied to the result
  /// First `a`, then `b`.
  GIWA_HOST_DEVICE constexpr then(const First& a, const Second& b) : first(a), second(b) {}
  /// See score_modifier.
  ///@{
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const { return second(first(score, c), c); }
  template <detail::dual_number Number>
    requires requires(const First& a, const Second& b, Number x, attention_coord c) { b(a(x, c), c); }
  GIWA_HOST_DEVICE Number operator()(Number score, attention_coord c) const {
    return second(first(score, c), c);
  }
  GIWA_HOST_DEVICE dual<float> value_and_slope(float score, attention_coord c) const
    requires(detail::has_slope<First> && detail::has_slope<Second>)
  {
    const dual<float> inner = detail::value_and_slope(first, score, c),
                      outer = detail::value_and_slope(second, inner.value, c);
    return {outer.value, outer.slope * inner.slope};
  }
  ///@}
  /// See score_modifier.
  GIWA_HOST_DEVICE constexpr detail::alignment_request requested_alignment() const {
    return detail::request_of(first).with(detail::request_of(second));
  }
  /// See score_modifier.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    return detail::check_both(first, second, s);
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
