// SPDX-License-Identifier: MIT
// The concept of a mask, which keys a query sees, and what kernels find out about one at compile time.
#ifndef GIWA_ATTENTION_PROBLEM_MASK_HPP
#define GIWA_ATTENTION_PROBLEM_MASK_HPP

#include <giwa/attention/problem/coordinate.hpp>
#include <giwa/base/status.hpp>

namespace giwa::inline GIWA_ABI {

/// A mask is any trivially copyable callable, `GIWA_HOST_DEVICE bool operator()(attention_coord c) const`: true keeps
/// the score. Pointers that it holds must be readable by the kernel. The other members are optional:
/// - `GIWA_HOST_DEVICE tile_keep classify(const score_tile& t) const`: whether a tile of scores is fully kept, fully
///   masked or mixed. A fully masked tile is not loaded; in a fully kept one operator() is not called. `some` is always
///   a correct answer. Without classify() every tile is mixed. Kernels ask about the same scores by tiles and by ranges, so
///   answers must not contradict each other or the other members: attention_forward() may then be wrong, and
///   attention_backward() wait forever.
/// - `static constexpr bool any_range = true`: classify() is correct for a range of keys of any length. Otherwise it is
///   asked about one tile of keys at a time.
/// - `static constexpr bool any_head = true`: no member reads the head. One answer of classify() then holds for all heads.
/// - `static constexpr bool one_range = true`: the keys of a query are the range from `int first_key(attention_coord c)
///   const` to `int last_key(attention_coord c) const`, both ends included. The mask has one of the two functions or
///   both, and kernels call them instead of operator(). c.key is not set there.
/// - `giwa::alignment align`: the mask depends on the diagonal, which the caller must choose where the lengths differ.
/// - `status check(const attention_sizes& s) const`: the first rule that the mask breaks for a problem of these sizes.
template <class Mask>
concept attention_mask = requires(const Mask& mask, attention_coord c) {
  { mask(c) } -> stdlib::same_as<bool>;
};

namespace detail {

/// What a mask keeps of a tile; `some` for a mask without classify().
template <class Mask>
GIWA_HOST_DEVICE constexpr tile_keep classify(const Mask& mask, const score_tile& t) {
  if constexpr (requires { mask.classify(t); })
    return mask.classify(t);
  else
    return tile_keep::some;
}

/// Whether classify() is correct for ranges of any length: `none` or `all` for a range means that it is so for each part. So it
/// is for a mask without one, whose answer is `some`.
template <class Mask>
GIWA_HOST_DEVICE constexpr bool asks_any_range() {
  if constexpr (requires { Mask::any_range; })
    return bool{Mask::any_range};
  else
    return !requires(const Mask& mask, const score_tile& t) { mask.classify(t); };
}
template <class Mask>
inline constexpr bool answers_any_range = asks_any_range<Mask>();

/// Whether all heads have the same mask. A mask that does not say so may depend on the head.
template <class Mask>
GIWA_HOST_DEVICE constexpr bool asks_any_head() {
  if constexpr (requires { Mask::any_head; })
    return bool{Mask::any_head};
  else
    return false;
}
template <class Mask>
inline constexpr bool answers_any_head = asks_any_head<Mask>();

/// What a mask keeps of a tile in the heads [t.head, t.head + heads) together, heads >= 1: all or none if it is so in
/// each of them.
template <class Mask>
GIWA_HOST_DEVICE constexpr tile_keep classify_heads(const Mask& mask, score_tile t, int heads) {
  const tile_keep first = classify(mask, t);
  if constexpr (!answers_any_head<Mask>)
    for (const int end = t.head + heads; first != tile_keep::some && ++t.head < end;)
      if (classify(mask, t) != first) return tile_keep::some;
  return first;
}

/// Masks described by each query's first and last key.
template <class Mask>
concept one_range_mask = requires { requires Mask::one_range; };
template <class Mask>
concept has_first_key = one_range_mask<Mask> && requires(const Mask& mask, attention_coord c) { mask.first_key(c); };
template <class Mask>
concept has_last_key = one_range_mask<Mask> && requires(const Mask& mask, attention_coord c) { mask.last_key(c); };

/// The alignment that a mask, a score modifier or the options ask for.
struct alignment_request {
  bool needed = false;    // depends on the diagonal
  bool conflict = false;  // its parts ask for different alignments
  alignment align{};

  GIWA_HOST_DEVICE constexpr alignment_request with(const alignment_request& b) const {
    const bool differ = align.is_set() && b.align.is_set() && align != b.align;
    return {needed || b.needed, conflict || b.conflict || differ, align.is_set() ? align : b.align};
  }
};
template <class F>
GIWA_HOST_DEVICE constexpr alignment_request request_of(const F& f) {
  if constexpr (requires { f.requested_alignment(); })
    return f.requested_alignment();
  else if constexpr (requires { requires stdlib::same_as<stdlib::remove_cvref_t<decltype(f.align)>, alignment>; })
    return {true, false, f.align};
  else
    return {};
}

/// The first rule that a mask or a score modifier breaks; success for one without check().
template <class F>
GIWA_HOST_DEVICE constexpr status check_callable(const F& f, const attention_sizes& sizes) {
  if constexpr (requires { f.check(sizes); })
    return f.check(sizes);
  else
    return {};
}
template <class First, class Second>
GIWA_HOST_DEVICE constexpr status check_both(const First& a, const Second& b, const attention_sizes& sizes) {
  const status s = check_callable(a, sizes);
  return s.ok() ? check_callable(b, sizes) : s;
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
