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

/// Adds a tensor to the scores as bias does; attention_backward writes the gradient of that tensor to another one.
/// `bias_with_gradient(values, gradient)`.
///
/// Both are (batch, heads, queries, keys) of any strides, with the sizes of the problem. Where sequences or heads share the
/// bias, both have size 1, and the gradient is the sum over them, in fp32 or fp64. The sum is in their order: the rows of all
/// that share an element are computed one after the other, so there must be enough queries, or other heads, for the GPU. With
/// attention_backward_options::any_order blocks may add to it at the same time, in fp32. Set the gradient to 0 before the call:
/// elements of scores that the mask drops are left as they are, or set to 0, and sums in any order are added to what is there.
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
  /// Writes the gradient of one element, or adds to it for any but the first of those that share it.
  GIWA_HOST_DEVICE void gradient(float dy, attention_coord c) const {
    const gradient_sharing all = shared();
    G& to = gradient_.data()[(all.sequences ? 0 : c.batch * gradient_.stride(0)) +
                             (all.heads ? 0 : c.head * gradient_.stride(1)) + c.query * gradient_.stride(2) +
                             c.key * gradient_.stride(3)];
    const bool first = (c.batch == 0 || !all.sequences) && (c.head == 0 || !all.heads);
    if constexpr (sizeof(G) >= 4)
      to = first ? static_cast<G>(dy) : to + static_cast<G>(dy);
    else
      to = convert<G>{}(dy);
  }
  /// See attention_backward.
  GIWA_HOST_DEVICE constexpr gradient_sharing shared() const {
    return {gradient_.extent(0) == 1, gradient_.extent(1) == 1};
  }
  /// See score_modifier.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    if (const status own = values.check(s); !own.ok()) return own;
    if (const status own = gradient_.check("bias gradient"); !own.ok()) return own;
    const int64 sizes[4] = {s.batch, s.heads, s.seq_q, s.seq_k};
    for (int d = 0; d < 4; ++d) {
      if (sizes[d] < 0)
        return status::invalid("bias gradient", "packed sequences have no gradient of a bias: use tensors of rank 4");
      const int64 own = gradient_.extent(d), other = values.values.extent(d);
      const bool shared_here = d < 2 && own == 1 && other == 1;
      if ((own != sizes[d] || other != sizes[d]) && !shared_here)
        return status::invalid("bias gradient",
                               "each size of the bias and of its gradient must be that of (batch, heads, queries, "
                               "keys), or both must be 1 for the batch or the heads",
                               bound::exactly, sizes[d], own != sizes[d] ? own : other);
      if (shared_here && sizes[d] > 1 && sizeof(G) < 4)
        return status::invalid(
            "bias gradient",
            "a gradient that sequences or heads share must be fp32 or fp64: sums in 16 bits would be "
            "rounded for each of them");
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

/// Returns the two biases of Evoformer (Jumper et al. 2021), as one score modifier: of each key, which masks it by a large negative
/// number, and of pairs of a query and a key, which all sequences (the rows of an alignment) share. The second is trained.
/// Parameters:
///   - of_keys: (sequences, keys)
///   - of_pairs, gradient: (heads, queries, keys); see bias_with_gradient
template <class K, class T, class G>
GIWA_HOST_DEVICE constexpr auto evoformer_bias(const tensor_view<K, 2>& of_keys, const tensor_view<T, 3>& of_pairs,
                                               const tensor_view<G, 3>& gradient) {
  const auto shared = [](const auto& v) {
    return tensor_view<typename stdlib::remove_cvref_t<decltype(v)>::element_type, 4>(
        v.data(), {1, v.extent(0), v.extent(1), v.extent(2)}, {0, v.stride(0), v.stride(1), v.stride(2)});
  };
  const tensor_view<const K, 4> keys(of_keys.data(), {of_keys.extent(0), 1, 1, of_keys.extent(1)},
                                     {of_keys.stride(0), 0, 0, of_keys.stride(1)});
  return then(bias(keys), bias_with_gradient(shared(of_pairs), shared(gradient)));
}

namespace detail {
/// A bias whose tiles the Hopper kernel of all gradients reads, and whose gradient it gives: the only or the last part of a score
/// modifier, with a slope of 1, in 16 bits; the gradient in the same type, or added in fp32.
template <class Score>
struct tiled_bias {
  static constexpr bool exists = false, adds = false, has_key_term = false;
  template <class T>
  static constexpr bool is_of = false;
};
template <class T, class G>
struct tiled_bias<bias_with_gradient<T, G>> {
  static constexpr bool adds = stdlib::same_as<G, float>, exists = sizeof(T) == 2 && (adds || stdlib::same_as<G, T>),
                        has_key_term = false;
  template <class Element>
  static constexpr bool is_of = exists && stdlib::same_as<T, Element>;  // whether products have its type

  GIWA_HOST_DEVICE static constexpr const bias_with_gradient<T, G>& of(const bias_with_gradient<T, G>& f) { return f; }
};
/// After a bias that all queries share: what it adds to a key is read once for a tile.
template <class Key, class T, class G>
struct tiled_bias<then<bias<Key>, bias_with_gradient<T, G>>> : tiled_bias<bias_with_gradient<T, G>> {
  using both = then<bias<Key>, bias_with_gradient<T, G>>;
  static constexpr bool has_key_term = true;
  GIWA_HOST_DEVICE static constexpr const bias_with_gradient<T, G>& of(const both& f) { return f.second; }
};
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
