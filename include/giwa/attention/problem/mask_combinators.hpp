// SPDX-License-Identifier: MIT
// Combinations of masks: both, either and complement, as functions and as the operators &, | and !.
#ifndef GIWA_ATTENTION_PROBLEM_MASK_COMBINATORS_HPP
#define GIWA_ATTENTION_PROBLEM_MASK_COMBINATORS_HPP

#include <giwa/attention/problem/mask.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {
template <bool Both>
GIWA_HOST_DEVICE constexpr bool joined(bool x, bool y) {
  return Both ? x && y : x || y;
}
GIWA_HOST_DEVICE constexpr tile_bits both_of(tile_bits a, tile_bits b) {
  return {a.visible & b.visible, a.full & b.full};
}
}  // namespace detail

/// Keeps what both masks keep, or, unless `Both`, what at least one of them keeps.
template <attention_mask First, attention_mask Second, bool Both>
struct mask_pair {
  First a;   ///< a mask
  Second b;  ///< another

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = mask_traits<First>::any_range && mask_traits<Second>::any_range;
  static constexpr bool any_head = mask_traits<First>::any_head && mask_traits<Second>::any_head;
  static constexpr bool one_range = Both && mask_traits<First>::one_range && mask_traits<Second>::one_range;
  static constexpr bool keeps_all = detail::joined<Both>(mask_traits<First>::keeps_all, mask_traits<Second>::keeps_all);
  static constexpr bool ends_at_diagonal =
      detail::joined<!Both>(mask_traits<First>::ends_at_diagonal, mask_traits<Second>::ends_at_diagonal);
  static constexpr bool keeps_to_diagonal =
      detail::joined<Both>(mask_traits<First>::keeps_to_diagonal, mask_traits<Second>::keeps_to_diagonal);
  GIWA_HOST_DEVICE constexpr bool known_on_host() const {
    return mask_traits<First>::known_on_host(a) && mask_traits<Second>::known_on_host(b);
  }
  GIWA_HOST_DEVICE constexpr int first_key(attention_coord c) const
    requires(Both && (detail::has_first_key<First> || detail::has_first_key<Second>))
  {
    if constexpr (!detail::has_first_key<First>)
      return b.first_key(c);
    else if constexpr (!detail::has_first_key<Second>)
      return a.first_key(c);
    else
      return a.first_key(c) > b.first_key(c) ? a.first_key(c) : b.first_key(c);
  }
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const
    requires(Both && (detail::has_last_key<First> || detail::has_last_key<Second>))
  {
    if constexpr (!detail::has_last_key<First>)
      return b.last_key(c);
    else if constexpr (!detail::has_last_key<Second>)
      return a.last_key(c);
    else
      return a.last_key(c) < b.last_key(c) ? a.last_key(c) : b.last_key(c);
  }
  GIWA_HOST_DEVICE constexpr int queries_of_block() const
    requires(mask_traits<First>::has_blocks || mask_traits<Second>::has_blocks)
  {
    const int x = mask_traits<First>::queries_of_block(a), y = mask_traits<Second>::queries_of_block(b);
    return x < y ? x : y;
  }
  GIWA_HOST_DEVICE constexpr int keys_of_block() const
    requires(mask_traits<First>::has_blocks || mask_traits<Second>::has_blocks)
  {
    const int x = mask_traits<First>::keys_of_block(a), y = mask_traits<Second>::keys_of_block(b);
    return x < y ? x : y;
  }
  GIWA_HOST_DEVICE constexpr tile_bits visible_keys(const score_tile& t, int size) const
    requires(Both && (mask_traits<First>::finds_visible || mask_traits<Second>::finds_visible))
  {
    return detail::both_of(detail::visible_tiles_of<true>(a, t, size), detail::visible_tiles_of<true>(b, t, size));
  }
  GIWA_HOST_DEVICE constexpr tile_bits visible_queries(const score_tile& t, int size) const
    requires(Both && (mask_traits<First>::finds_visible || mask_traits<Second>::finds_visible))
  {
    return detail::both_of(detail::visible_tiles_of<false>(a, t, size), detail::visible_tiles_of<false>(b, t, size));
  }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const {
    if constexpr (Both)
      return a(c) && b(c);
    else
      return a(c) || b(c);
  }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    constexpr tile_keep decides = Both ? tile_keep::none : tile_keep::all,
                        leaves = Both ? tile_keep::all : tile_keep::none;
    const tile_keep x = detail::classify(a, t), y = x == decides ? x : detail::classify(b, t);
    return x == decides || y == decides ? decides : x == leaves ? y : y == leaves ? x : tile_keep::some;
  }
  GIWA_HOST_DEVICE constexpr detail::alignment_request requested_alignment() const {
    return detail::request_of(a).with(detail::request_of(b));
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const { return detail::check_both(a, b, s); }
  ///@}
};
/// Keeps what both masks keep: the type of `a & b`.
template <attention_mask First, attention_mask Second>
using mask_and = mask_pair<First, Second, true>;
/// Keeps what at least one of two masks keeps: the type of `a | b`.
template <attention_mask First, attention_mask Second>
using mask_or = mask_pair<First, Second, false>;

/// Keeps what a mask does not keep: the type of `!a`.
template <attention_mask First>
struct mask_not {
  First a;  ///< a mask

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = mask_traits<First>::any_range;
  static constexpr bool any_head = mask_traits<First>::any_head;
  GIWA_HOST_DEVICE constexpr bool known_on_host() const { return mask_traits<First>::known_on_host(a); }
  GIWA_HOST_DEVICE constexpr int queries_of_block() const
    requires(mask_traits<First>::has_blocks)
  {
    return a.queries_of_block();
  }
  GIWA_HOST_DEVICE constexpr int keys_of_block() const
    requires(mask_traits<First>::has_blocks)
  {
    return mask_traits<First>::keys_of_block(a);
  }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return !a(c); }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    const tile_keep x = detail::classify(a, t);
    return x == tile_keep::none ? tile_keep::all : x == tile_keep::all ? tile_keep::none : x;
  }
  GIWA_HOST_DEVICE constexpr detail::alignment_request requested_alignment() const { return detail::request_of(a); }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const { return detail::check_callable(a, s); }
  ///@}
};

/// Combines masks: what both keep, what at least one keeps, what it does not keep.
///@{
template <attention_mask First, attention_mask Second>
GIWA_HOST_DEVICE constexpr mask_and<First, Second> both(const First& a, const Second& b) {
  return {a, b};
}
template <attention_mask First, attention_mask Second>
GIWA_HOST_DEVICE constexpr mask_or<First, Second> either(const First& a, const Second& b) {
  return {a, b};
}
template <attention_mask First>
GIWA_HOST_DEVICE constexpr mask_not<First> complement(const First& a) {
  return {a};
}
///@}

/// The same as operators. C++ finds them if at least one operand is a mask of giwa. To combine custom masks with each
/// other, call both(), either() and complement().
///@{
template <attention_mask First, attention_mask Second>
GIWA_HOST_DEVICE constexpr mask_and<First, Second> operator&(const First& a, const Second& b) {
  return {a, b};
}
template <attention_mask First, attention_mask Second>
GIWA_HOST_DEVICE constexpr mask_or<First, Second> operator|(const First& a, const Second& b) {
  return {a, b};
}
template <attention_mask First>
GIWA_HOST_DEVICE constexpr mask_not<First> operator!(const First& a) {
  return {a};
}
///@}

}  // namespace giwa::inline GIWA_ABI

#endif
