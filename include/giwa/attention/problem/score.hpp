// SPDX-License-Identifier: MIT
// Score modifiers: what happens to a score between the scale and the mask.
#ifndef GIWA_ATTENTION_PROBLEM_SCORE_HPP
#define GIWA_ATTENTION_PROBLEM_SCORE_HPP

#include <giwa/arch/math.hpp>
#include <giwa/attention/problem/coordinate.hpp>
#include <giwa/attention/problem/mask.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/softmax/exponential.hpp>

namespace giwa::inline GIWA_ABI {

/// A score modifier is any trivially copyable callable, `GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const`,
/// of the scaled score, before the mask. What it reads lies where the kernel can read it; it is called for scores inside both
/// sequences only. Like a mask it may have a member `giwa::alignment align`, and check().
template <class F>
concept score_modifier = requires(const F& f, float score, attention_coord c) {
  { f(score, c) } -> stdlib::same_as<float>;
};

struct attention_options;

namespace detail {
/// The rules for the types of a mask and a score modifier.
template <class Mask, class Score>
GIWA_HOST_DEVICE constexpr void require_mask_and_score() {
  static_assert(!stdlib::same_as<Mask, attention_options> && !stdlib::same_as<Score, attention_options>,
                "giwa: the options come after the mask and the score modifier: (stream, q, k, v, o, mask, "
                "giwa::plain_score{}, options).");
  static_assert(attention_mask<Mask>, "giwa: a mask is called with (giwa::attention_coord) and returns bool.");
  static_assert(!one_range_mask<Mask> || has_first_key<Mask> || has_last_key<Mask>,
                "giwa: a mask that is one_range has first_key(giwa::attention_coord) const, "
                "last_key(giwa::attention_coord) const, or both.");
  static_assert(score_modifier<Score>,
                "giwa: a score modifier is called with (float, giwa::attention_coord) and returns float.");
}
}  // namespace detail

/// The score as it is.
struct plain_score {
  /// What becomes of the score.
  GIWA_HOST_DEVICE constexpr float operator()(float score, attention_coord) const { return score; }
};

/// cap tanh(score / cap): between -cap and cap, for a cap of 1e-30 to 1e30. (Gemma 2; Bello et al. 2016.)
class softcap {
 public:
  /// From 1e-30 to 1e30; others are refused by the call.
  GIWA_HOST_DEVICE explicit constexpr softcap(float cap) : cap_(cap), rate_(-2.88539008177792681472f / cap) {}

  /// What becomes of the score.
  GIWA_HOST_DEVICE float operator()(float score, attention_coord) const {
    // tanh |x| = 1 - 2 e / (1 + e) with e = 2^(-2 log2(e) |x|), to 7 times 2^-24 of the cap: what digits it loses near 0 are
    // those that a score of the cap's size does not have either.
#if defined(__CUDA_ARCH__)
    // By name: the compiler's quotients and exponentials guard against ranges that these do not leave, in twice the time.
    const float e = arch::exp2_approximate(::fabsf(score) * rate_);
    return ::copysignf(cap_ - 2.0f * cap_ * (e * arch::reciprocal_approximate(1.0f + e)), score);
#else
    const float e = exponential{}((score < 0 ? score : -score) / cap_ * 2.0f);
    const float size = cap_ - 2.0f * cap_ * (e / (1.0f + e));
    return score < 0 ? -size : size;
#endif
  }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    constexpr float least = 1e-30f, most = 1e30f;  // beyond, quotients leave float's range
    return cap_ >= least && cap_ <= most ? status{}
                                         : status::invalid("softcap", "the cap is no number from 1e-30 to 1e30");
  }

 private:
  float cap_, rate_;
};

/// A straight slope a head: score - slopes[head] |diagonal - key|. (Press et al. 2021, "Train short, test long".)
struct alibi {
  const float* slopes;     ///< (heads), or (batch, heads) with a batch stride
  int64 batch_stride = 0;  ///< between sequences, 0 where all have the same
  alignment align{};       ///< of the diagonal, where the lengths differ

  /// What becomes of the score.
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const {
    const int distance = c.diagonal > c.key ? c.diagonal - c.key : c.key - c.diagonal;
    return score - slopes[c.batch * batch_stride + c.head] * static_cast<float>(distance);
  }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return slopes != nullptr ? status{} : status::invalid("alibi", "the pointer to the slopes is null");
  }
};

/// Adds a tensor (batch, heads, queries, keys), a dimension of size 1 serving for all: `bias(view)`. Any strides.
template <class T>
struct bias {
  static_assert(floating_element<stdlib::remove_const_t<T>>, "giwa::bias: elements are fp16, bf16, fp32 or fp64.");
  tensor_view<const T, 4> values;  ///< (batch, heads, queries, keys)

  /// Of the tensor.
  GIWA_HOST_DEVICE explicit constexpr bias(const tensor_view<const T, 4>& values_) : values(values_) {}

  /// What becomes of the score.
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const {
    const auto at = [&](int d, int i) { return values.extent(d) == 1 ? 0 : i * values.stride(d); };
    return score + convert<float>{}(values.data()[at(0, c.batch) + at(1, c.head) + at(2, c.query) + at(3, c.key)]);
  }
  /// The first size that is neither 1 nor the problem's.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    if (const status own = values.check("bias"); !own.ok()) return own;
    const int64 sizes[4] = {s.batch, s.heads, s.seq_q, s.seq_k};
    for (int d = 0; d < 4; ++d) {
      if (values.extent(d) == 1) continue;
      if (sizes[d] < 0)
        return status::invalid("bias", "where lengths are known to the device alone, a bias cannot differ along them",
                               bound::exactly, 1, values.extent(d));
      if (values.extent(d) != sizes[d])
        return status::invalid("bias", "a size is neither 1 nor that of (batch, heads, queries, keys)", bound::exactly,
                               sizes[d], values.extent(d));
    }
    return {};
  }
};
/// From a view of any constness.
template <class T>
bias(const tensor_view<T, 4>&) -> bias<stdlib::remove_const_t<T>>;

/// The second of what the first makes of the score: `then(softcap{30}, bias(b))`.
template <score_modifier First, score_modifier Second>
struct then {
  First first;    ///< on the score
  Second second;  ///< on what that makes of it
  /// `b` of what `a` makes of the score.
  GIWA_HOST_DEVICE constexpr then(const First& a, const Second& b) : first(a), second(b) {}
  /// What becomes of the score.
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const { return second(first(score, c), c); }
  /// The diagonal that its parts ask for.
  GIWA_HOST_DEVICE constexpr detail::alignment_request requested_alignment() const {
    return detail::request_of(first).with(detail::request_of(second));
  }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    return detail::check_both(first, second, s);
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
