// SPDX-License-Identifier: MIT
// Biases that attention_backward gives the gradient of.
#ifndef GIWA_ATTENTION_PROBLEM_BIAS_GRADIENT_HPP
#define GIWA_ATTENTION_PROBLEM_BIAS_GRADIENT_HPP

#include <giwa/attention/problem/score_gradient.hpp>

namespace giwa::inline GIWA_ABI {

/// Adds a tensor to the scores as bias does; attention_backward writes the gradient of that tensor to another one.
/// `bias_with_gradient(values, gradient)`.
///
/// Both are (batch, heads, queries, keys) of any strides, with the sizes of the problem. Where sequences or heads share the
/// bias, both have size 1, and the gradient is the sum over them, in fp32 or fp64. The sum is in their order, with
/// attention_backward_options::any_order and in fp32 on Hopper in any order. Where one kernel of Hopper computes all gradients
/// (docs/attention_backward.md), blocks add to it in turn; elsewhere one block computes the rows of all that share an element, so there
/// must be enough queries, or other heads, for the GPU. Set the gradient to 0 before the call: elements of scores that the mask drops
/// are left as they are, or set to 0, and sums in any order are added to what is there.
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
template <class Key, class Pair, class Gradient>
GIWA_HOST_DEVICE constexpr auto evoformer_bias(const tensor_view<Key, 2>& of_keys, const tensor_view<Pair, 3>& of_pairs,
                                               const tensor_view<Gradient, 3>& gradient) {
  const auto shared = [](const auto& v) {
    return tensor_view<typename stdlib::remove_cvref_t<decltype(v)>::element_type, 4>(
        v.data(), {1, v.extent(0), v.extent(1), v.extent(2)}, {0, v.stride(0), v.stride(1), v.stride(2)});
  };
  const tensor_view<const Key, 4> keys(of_keys.data(), {of_keys.extent(0), 1, 1, of_keys.extent(1)},
                                       {of_keys.stride(0), 0, 0, of_keys.stride(1)});
  return then(bias(keys), bias_with_gradient(shared(of_pairs), shared(gradient)));
}

namespace detail {
/// A bias whose tiles the Hopper kernel of all gradients reads, and whose gradient it gives: the only or the last part of a score
/// modifier, with a slope of 1, in 16 bits; the gradient in the same type, or added in fp32.
template <class Score>
struct tiled_bias {
  using element = void;
  static constexpr bool exists = false, adds = false, has_key_term = false;
};
template <class T, class G>
struct tiled_bias<bias_with_gradient<T, G>> {
  using element = T;
  static constexpr bool adds = stdlib::same_as<G, float>, exists = sizeof(T) == 2 && (adds || stdlib::same_as<G, T>),
                        has_key_term = false;
  GIWA_HOST_DEVICE static constexpr const bias_with_gradient<T, G>& of(const bias_with_gradient<T, G>& f) { return f; }
};
/// After a bias that all queries share: what it adds to a key is read once for a tile.
template <class Key, class T, class G>
struct tiled_bias<then<bias<Key>, bias_with_gradient<T, G>>> : tiled_bias<bias_with_gradient<T, G>> {
  using both = then<bias<Key>, bias_with_gradient<T, G>>;
  static constexpr bool has_key_term = true;
  GIWA_HOST_DEVICE static constexpr const bias_with_gradient<T, G>& of(const both& f) { return f.second; }
};
/// Whether the kernel reads the tiles of a modifier's bias where products have this type.
template <class Score, class Element>
inline constexpr bool has_tiled_bias_of =
    tiled_bias<Score>::exists && stdlib::same_as<typename tiled_bias<Score>::element, Element>;
}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
