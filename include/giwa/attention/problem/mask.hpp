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
///   a correct answer. Without classify() a tile is mixed, unless keeps_all or a member about the diagonal says more.
///   Kernels ask about the same scores by tiles and by ranges, so answers must not contradict each other or the other
///   members: attention_forward() may then be wrong, and attention_backward() wait forever.
/// - `static constexpr bool any_range = true`: classify() is correct for a range of keys of any length. Otherwise it is
///   asked about one tile of keys at a time.
/// - `static constexpr bool any_head = true`: no member reads the head. One answer of classify() then holds for all heads.
/// - `static constexpr bool one_range = true`: the keys of a query are the range from `int first_key(attention_coord c)
///   const` to `int last_key(attention_coord c) const`, both ends included. The mask has one of the two functions or
///   both, and kernels call them instead of operator(). c.key is not set there.
/// - `static constexpr bool keeps_all = true`: every query sees every key. Calls then take the tiles of `full`.
/// - `static constexpr bool ends_at_diagonal = true`: no query sees a key after c.diagonal.
/// - `static constexpr bool keeps_to_diagonal = true`: every query sees every key up to c.diagonal. A mask that says both is
///   causal, and takes the tiles and schedules of `causal`.
/// - `GIWA_HOST_DEVICE bool known_on_host() const`, or a static function: whether the host may call the members, and they do
///   not read the sequence (c.batch). A mask that reads the memory of a GPU says false, or nothing. Calls on several GPUs send
///   only the keys that some query may see, and ask masks that are known_on_host, any_range and any_head.
/// - `GIWA_HOST_DEVICE int queries_of_block() const`: the mask is made of blocks, so that K tiles that a query does not see may lie
///   between those that it sees, and so many consecutive queries, from a multiple of that on, see the same blocks. Kernels then look
///   for such tiles everywhere; of other masks they skip those that no query of a work tile sees. The host calls it too. And
///   keys_of_block(), the same of keys, 1 if the mask does not say it: the host chooses kernels by both.
/// - `GIWA_HOST_DEVICE tile_bits visible_keys(const score_tile& t, int size) const`, and visible_queries(t, size): what is kept of 32
///   tiles of t's queries and `size` keys each, from t.first_key on, and of 32 tiles of `size` queries and t's keys. Bits of tiles
///   that begin after t mean nothing. Of a tile that is visible and not full, classify() is asked.
/// - `GIWA_HOST_DEVICE uint32 key_bits(attention_coord c) const`: bit i says whether the query sees key c.key + i; bits of keys past the
///   end mean nothing. In tiles that are visible in part, kernels call it for 32 keys instead of operator() for each where they can.
/// - `giwa::alignment align`: the mask depends on the diagonal, which the caller must choose where the lengths differ.
/// - `status check(const attention_sizes& s) const`: the first rule that the mask breaks for a problem of these sizes.
template <class Mask>
concept attention_mask = requires(const Mask& mask, attention_coord c) {
  { mask(c) } -> stdlib::same_as<bool>;
};

/// What a mask says of itself at compile time, and what holds of a mask that does not say it. See attention_mask.
template <class Mask>
struct mask_traits {
  /// Whether classify() is correct for ranges of any length: `none` or `all` for a range means that it is so for each part.
  /// True without classify().
  static constexpr bool any_range =
      requires { requires Mask::any_range; } || !requires(const Mask& mask, const score_tile& t) { mask.classify(t); };
  /// Whether no member reads the head; false if the mask does not say so.
  static constexpr bool any_head = requires { requires Mask::any_head; };
  /// Whether the keys of a query are one range; false if the mask does not say so.
  static constexpr bool one_range = requires { requires Mask::one_range; };
  /// Whether every query sees every key; false if the mask does not say so.
  static constexpr bool keeps_all = requires { requires Mask::keeps_all; };
  /// Whether no query sees a key after the diagonal; false if the mask does not say so.
  static constexpr bool ends_at_diagonal = requires { requires Mask::ends_at_diagonal; };
  /// Whether every query sees every key up to the diagonal; false if the mask says neither this nor keeps_all.
  static constexpr bool keeps_to_diagonal = keeps_all || requires { requires Mask::keeps_to_diagonal; };
  /// Whether every query sees the keys up to the diagonal, and no others.
  static constexpr bool is_causal = ends_at_diagonal && keeps_to_diagonal;

  /// Whether the mask is made of blocks; false if it does not say of how many queries, or keeps all.
  static constexpr bool has_blocks = !keeps_all && requires(const Mask& mask) { mask.queries_of_block(); };

  /// Whether the mask says of 32 tiles at once which are visible.
  static constexpr bool finds_visible = requires(const Mask& mask, const score_tile& t) {
    mask.visible_keys(t, 1);
    mask.visible_queries(t, 1);
  };

  /// Whether the mask answers for 32 keys of a query at once.
  static constexpr bool has_key_bits = requires(const Mask& mask, attention_coord c) { mask.key_bits(c); };

  /// Returns the number of consecutive queries that see the same blocks, or the largest int if the mask is not made of blocks.
  GIWA_HOST_DEVICE static constexpr int queries_of_block(const Mask& mask) {
    if constexpr (has_blocks)
      return mask.queries_of_block();
    else
      return 0x7fffffff;
  }
  /// The same of keys; 1 if a mask of blocks does not say it.
  GIWA_HOST_DEVICE static constexpr int keys_of_block(const Mask& mask) {
    if constexpr (!has_blocks)
      return 0x7fffffff;
    else if constexpr (requires { mask.keys_of_block(); })
      return mask.keys_of_block();
    else
      return 1;
  }
  /// Whether the host may call the members of this mask; false if the mask does not say so.
  GIWA_HOST_DEVICE static constexpr bool known_on_host(const Mask& mask) {
    if constexpr (requires { mask.known_on_host(); })
      return mask.known_on_host();
    else
      return false;
  }
};

namespace detail {

/// What mask_traits say of a tile, without asking the mask: exact for a mask that keeps all or is causal.
template <class Mask>
GIWA_HOST_DEVICE constexpr tile_keep keep_by_traits(const score_tile& t) {
  using traits = mask_traits<Mask>;
  if (traits::keeps_all || (traits::keeps_to_diagonal && t.last_key <= t.first_diagonal())) return tile_keep::all;
  return traits::ends_at_diagonal && t.first_key > t.last_diagonal() ? tile_keep::none : tile_keep::some;
}

/// What a mask keeps of a tile. Without classify() it is what mask_traits say.
template <class Mask>
GIWA_HOST_DEVICE constexpr tile_keep classify(const Mask& mask, const score_tile& t) {
  if constexpr (mask_traits<Mask>::keeps_all)
    return tile_keep::all;
  else if constexpr (requires { mask.classify(t); })
    return mask.classify(t);
  else
    return keep_by_traits<Mask>(t);
}

/// What a mask keeps of a tile in the heads [t.head, t.head + heads) together, heads >= 1: all or none if it is so in
/// each of them.
template <class Mask>
GIWA_HOST_DEVICE constexpr tile_keep classify_heads(const Mask& mask, score_tile t, int heads) {
  const tile_keep first = classify(mask, t);
  if constexpr (!mask_traits<Mask>::any_head)
    for (const int end = t.head + heads; first != tile_keep::some && ++t.head < end;)
      if (classify(mask, t) != first) return tile_keep::some;
  return first;
}

/// What a mask keeps of 32 tiles along an axis. Without its members for that it is what classify() says of all together.
template <bool OfKeys, class Mask>
GIWA_HOST_DEVICE constexpr tile_bits visible_tiles_of(const Mask& mask, const score_tile& t, int size) {
  if constexpr (mask_traits<Mask>::finds_visible && OfKeys)
    return mask.visible_keys(t, size);
  else if constexpr (mask_traits<Mask>::finds_visible)
    return mask.visible_queries(t, size);
  else if constexpr (mask_traits<Mask>::any_range)
    return classify(mask, t) == tile_keep::none ? tile_bits{0, 0} : tile_bits{};
  else
    return {};
}

/// Masks described by each query's first and last key.
template <class Mask>
concept one_range_mask = mask_traits<Mask>::one_range;
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
