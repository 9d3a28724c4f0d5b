// SPDX-License-Identifier: MIT
// Score modifiers: what happens to a score between the scale and the mask.
#ifndef GIWA_ATTENTION_SCORE_HPP
#define GIWA_ATTENTION_SCORE_HPP

#include <giwa/attention/coordinate.hpp>
#include <giwa/attention/mask.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/softmax/exponential.hpp>

namespace giwa::inline GIWA_ABI {

// A score modifier is any trivially copyable callable
//   GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const;
// of the scaled score, before the mask. What it reads lies where the kernel can read it; it is called for scores inside both
// sequences only. Like a mask it may have a member `giwa::alignment align`.

template <class F>
concept score_modifier = requires(const F& f, float score, attention_coord c) {
  { f(score, c) } -> stdlib::same_as<float>;
};

/// The score as it is.
struct plain_score {
  GIWA_HOST_DEVICE constexpr float operator()(float score, attention_coord) const { return score; }
};

/// cap tanh(score / cap): between -cap and cap. (Gemma 2; Bello et al. 2016.) cap is above 0.
struct softcap {
  float cap;

  GIWA_HOST_DEVICE float operator()(float score, attention_coord) const {
    // tanh |x| = 1 - 2 e / (1 + e) with e = e^-2|x|, to 5 times 2^-24 of the cap: what digits it loses near 0 are those that a
    // score of the cap's size does not have either.
    const float e = power(-2.0f * quotient(score < 0 ? -score : score, cap));
    const float size = cap * (1.0f - quotient(2.0f * e, 1.0f + e));
    return score < 0 ? -size : size;
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    constexpr float largest = 1e30f;  // beyond, quotients leave float's range
    return cap > 0 && cap <= largest ? status{} : status::invalid("softcap", "the cap is not above 0, or above 1e30");
  }

 private:
  GIWA_HOST_DEVICE static float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fdividef(a, b);
#else
    return a / b;
#endif
  }
  GIWA_HOST_DEVICE static float power(float x) {
#if defined(__CUDA_ARCH__)
    return __expf(x);
#else
    return exponential{}(x);
#endif
  }
};

/// A straight slope a head: score - slopes[head] |diagonal - key|. (Press et al. 2021, "Train short, test long".)
struct alibi {
  const float* slopes;  // (heads), or (batch, heads) with a batch stride
  int64 batch_stride = 0;
  alignment align = alignment::unset;

  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const {
    const int distance = c.diagonal > c.key ? c.diagonal - c.key : c.key - c.diagonal;
    return score - slopes[c.batch * batch_stride + c.head] * static_cast<float>(distance);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return slopes != nullptr ? status{} : status::invalid("alibi", "the pointer to the slopes is null");
  }
};

/// Adds a tensor (batch, heads, queries, keys), a dimension of size 1 serving for all: `bias(view)`. Any strides.
template <class T>
struct bias {
  static_assert(floating_element<stdlib::remove_const_t<T>>, "giwa::bias: elements are fp16, bf16, fp32 or fp64.");
  tensor_view<const T, 4> values;

  GIWA_HOST_DEVICE explicit constexpr bias(const tensor_view<const T, 4>& values_) : values(values_) {}

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
template <class T>
bias(const tensor_view<T, 4>&) -> bias<stdlib::remove_const_t<T>>;

/// The second of what the first makes of the score: `then(softcap{30}, bias(b))`.
template <score_modifier First, score_modifier Second>
struct then {
  First first;
  Second second;
  GIWA_HOST_DEVICE constexpr then(const First& a, const Second& b) : first(a), second(b) {}
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const { return second(first(score, c), c); }
  GIWA_HOST_DEVICE constexpr detail::alignment_wish wish() const {
    return detail::wish_of(first).both(detail::wish_of(second));
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    return detail::check_both(first, second, s);
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
