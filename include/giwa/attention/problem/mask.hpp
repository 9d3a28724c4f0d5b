// SPDX-License-Identifier: MIT
// Masks: which keys a query sees, as small types that combine with &, | and !.
#ifndef GIWA_ATTENTION_PROBLEM_MASK_HPP
#define GIWA_ATTENTION_PROBLEM_MASK_HPP

#include <giwa/attention/problem/coordinate.hpp>
#include <giwa/base/status.hpp>

namespace giwa::inline GIWA_ABI {

/// A mask is any trivially copyable callable, `GIWA_HOST_DEVICE bool operator()(attention_coord c) const`: whether the score
/// counts. It may say more:
/// - `GIWA_HOST_DEVICE tile_keep classify(const score_tile& t) const`: tiles that need no question, or no work. An answer of
///   `some` is always right; without it every score is asked.
/// - `static constexpr bool any_range = true`: classify() is right for a range of any length; else it is asked about one tile of
///   keys at a time.
/// - `static constexpr bool one_range = true`: a query's keys lie from `int first_key(attention_coord c) const` to `int
///   last_key(attention_coord c) const`: it has one of these or both, and kernels ask them in place of operator(). c.key means
///   nothing there.
/// - `giwa::alignment align`, a member: it speaks of the diagonal, which must be known where the lengths differ.
/// - `status check(const attention_sizes& s) const`: the first rule that it breaks for such a problem.
template <class Mask>
concept attention_mask = requires(const Mask& mask, attention_coord c) {
  { mask(c) } -> stdlib::same_as<bool>;
};

namespace detail {

/// What a mask leaves of a tile; `some` where it does not say.
template <class Mask>
GIWA_HOST_DEVICE constexpr tile_keep classify(const Mask& mask, const score_tile& t) {
  if constexpr (requires { mask.classify(t); })
    return mask.classify(t);
  else
    return tile_keep::some;
}

/// Whether a mask classifies ranges of any length. One that classifies nothing answers `some`, which is right for all.
template <class Mask>
GIWA_HOST_DEVICE constexpr bool asks_any_range() {
  if constexpr (requires { Mask::any_range; })
    return bool{Mask::any_range};
  else
    return !requires(const Mask& mask, const score_tile& t) { mask.classify(t); };
}
template <class Mask>
inline constexpr bool answers_any_range = asks_any_range<Mask>();

/// Masks that are told by each query's first and last key.
template <class Mask>
concept one_range_mask = requires { requires Mask::one_range; };
template <class Mask>
concept has_first_key = one_range_mask<Mask> && requires(const Mask& mask, attention_coord c) { mask.first_key(c); };
template <class Mask>
concept has_last_key = one_range_mask<Mask> && requires(const Mask& mask, attention_coord c) { mask.last_key(c); };

/// The alignment that a mask or a score modifier asks for.
struct alignment_wish {
  bool needed = false;    // it speaks of the diagonal
  bool conflict = false;  // its parts ask for different ones
  alignment align = alignment::unset;

  GIWA_HOST_DEVICE constexpr alignment_wish both(const alignment_wish& b) const {
    const bool differ = align != alignment::unset && b.align != alignment::unset && align != b.align;
    return {needed || b.needed, conflict || b.conflict || differ, align != alignment::unset ? align : b.align};
  }
};
template <class F>
GIWA_HOST_DEVICE constexpr alignment_wish wish_of(const F& f) {
  if constexpr (requires { f.wish(); })
    return f.wish();
  else if constexpr (requires { requires stdlib::same_as<stdlib::remove_cvref_t<decltype(f.align)>, alignment>; })
    return {true, false, f.align};
  else
    return {};
}

/// The first rule that a mask or a score modifier breaks; none where it does not say.
template <class F>
GIWA_HOST_DEVICE constexpr status check_callable(const F& f, const attention_sizes& sizes) {
  if constexpr (requires { f.check(sizes); })
    return f.check(sizes);
  else
    return {};
}
/// a + b, or the nearest int: a row's bound, which is compared with its keys in 32 bits.
GIWA_HOST_DEVICE constexpr int saturated_sum(int a, int b) {
  constexpr int64 most = (int64{1} << 31) - 1;
  const int64 sum = int64{a} + b;
  return static_cast<int>(sum > most ? most : sum < -most ? -most : sum);
}
GIWA_HOST_DEVICE constexpr status check_window(const char* argument, int count) {
  if (count >= 0) return {};
  return status::invalid(argument, "a window's number of keys is negative", bound::at_least, 0, count);
}
template <class First, class Second>
GIWA_HOST_DEVICE constexpr status check_both(const First& a, const Second& b, const attention_sizes& sizes) {
  const status s = check_callable(a, sizes);
  return s.ok() ? check_callable(b, sizes) : s;
}

/// From the first and the last question that a range of a monotonic condition answers: both yes, both no, or mixed.
GIWA_HOST_DEVICE constexpr tile_keep between(bool everywhere, bool anywhere) {
  return everywhere ? tile_keep::all : anywhere ? tile_keep::some : tile_keep::none;
}

}  // namespace detail

/// Every key.
struct full {
  static constexpr bool any_range = true;  ///< classify() takes ranges of any length
  static constexpr bool one_range = true;  ///< the keys of a query are one range
  /// The last key that the query sees.
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord) const { return 2147483647; }
  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord) const { return true; }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile&) const { return tile_keep::all; }
};

/// Keys up to the diagonal: `causal{}` where the lengths agree, else `causal::top_left` or `causal::bottom_right`.
struct causal {
  static constexpr bool any_range = true;  ///< classify() takes ranges of any length
  static constexpr bool one_range = true;  ///< the keys of a query are one range
  alignment align = alignment::unset;      ///< of the diagonal, where the lengths differ
  static const causal top_left;            ///< key = query
  static const causal bottom_right;        ///< the last query sees the last key

  /// The last key that the query sees.
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const { return c.diagonal; }
  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return c.key <= c.diagonal; }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return detail::between(t.last_key <= t.first_diagonal(), t.first_key <= t.last_diagonal());
  }
};
inline constexpr causal causal::top_left{alignment::top_left};
inline constexpr causal causal::bottom_right{alignment::bottom_right};

/// A window, counted from the diagonal: no key more than `count` before it; together with causal so many keys and itself.
struct keys_back {
  static constexpr bool any_range = true;  ///< classify() takes ranges of any length
  static constexpr bool one_range = true;  ///< the keys of a query are one range
  int count;                               ///< of keys
  alignment align = alignment::unset;      ///< of the diagonal, where the lengths differ

  /// The first key that the query sees.
  GIWA_HOST_DEVICE constexpr int first_key(attention_coord c) const {
    return detail::saturated_sum(c.diagonal, -count);
  }
  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return c.key >= first_key(c); }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return detail::between(int64{t.first_key} >= int64{t.last_diagonal()} - count,
                           int64{t.last_key} >= int64{t.first_diagonal()} - count);
  }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return detail::check_window("keys_back", count);
  }
};
/// No key more than `count` after the diagonal.
struct keys_ahead {
  static constexpr bool any_range = true;  ///< classify() takes ranges of any length
  static constexpr bool one_range = true;  ///< the keys of a query are one range
  int count;                               ///< of keys
  alignment align = alignment::unset;      ///< of the diagonal, where the lengths differ

  /// The last key that the query sees.
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const { return detail::saturated_sum(c.diagonal, count); }
  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return c.key <= last_key(c); }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return detail::between(int64{t.last_key} <= int64{t.first_diagonal()} + count,
                           int64{t.first_key} <= int64{t.last_diagonal()} + count);
  }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return detail::check_window("keys_ahead", count);
  }
};
/// The `count` keys up to the diagonal, itself among them.
struct width {
  static constexpr bool any_range = true;  ///< classify() takes ranges of any length
  static constexpr bool one_range = true;  ///< the keys of a query are one range
  int count;                               ///< of keys
  alignment align = alignment::unset;      ///< of the diagonal, where the lengths differ

  /// The first key that the query sees.
  GIWA_HOST_DEVICE constexpr int first_key(attention_coord c) const {
    return detail::saturated_sum(c.diagonal, 1 - count);
  }
  /// The last key that the query sees.
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const { return c.diagonal; }
  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const {
    return first_key(c) <= c.key && c.key <= last_key(c);
  }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return detail::between(t.last_key <= t.first_diagonal() && int64{t.first_key} > int64{t.last_diagonal()} - count,
                           t.first_key <= t.last_diagonal() && int64{t.last_key} > int64{t.first_diagonal()} - count);
  }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const { return detail::check_window("width", count); }
};

/// The first `count` keys, of every sequence alike or of each its own. With causal it makes a prefix language model:
/// `prefix{100} | causal{}`.
struct prefix {
  static constexpr bool any_range = true;  ///< classify() takes ranges of any length
  static constexpr bool one_range = true;  ///< the keys of a query are one range
  int count = 0;                           ///< of keys
  const int* counts = nullptr;             ///< (batch), where the kernel can read it; instead of count

  /// The keys of a sequence that count.
  GIWA_HOST_DEVICE constexpr int of(int batch) const { return counts != nullptr ? counts[batch] : count; }
  /// The last key that the query sees.
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const { return of(c.batch) - 1; }
  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return c.key <= last_key(c); }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    const int n = of(t.batch);
    return detail::between(t.last_key < n, t.first_key < n);
  }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return detail::check_window("prefix", count);
  }
};

/// Only keys of the query's own document: ids (batch, length), `queries` and `keys` pointing where the kernel can read them, a
/// sequence's ids `query_stride` and `key_stride` elements after the one before. Where `ascending` promises that ids never
/// fall along a sequence, tiles of other documents are passed over.
struct documents {
  static constexpr bool any_range = true;  ///< classify() takes ranges of any length
  const int* queries;                      ///< ids of documents
  const int* keys;                         ///< ids of documents
  int64 query_stride = 0;                  ///< between sequences
  int64 key_stride = 0;                    ///< between sequences
  bool ascending = false;                  ///< ids never fall

  /// The document of a row.
  ///@{
  GIWA_HOST_DEVICE constexpr int of_query(int batch, int query) const { return queries[batch * query_stride + query]; }
  GIWA_HOST_DEVICE constexpr int of_key(int batch, int key) const { return keys[batch * key_stride + key]; }
  ///@}

  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const {
    return of_query(c.batch, c.query) == of_key(c.batch, c.key);
  }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    if (!ascending) return tile_keep::some;
    const int first_query = of_query(t.batch, t.first_query), last_query = of_query(t.batch, t.last_query);
    const int first_key = of_key(t.batch, t.first_key), last_key = of_key(t.batch, t.last_key);
    return detail::between(first_query == last_query && first_key == last_key && first_query == first_key,
                           first_query <= last_key && first_key <= last_query);
  }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    const bool missing = (queries == nullptr && s.seq_q != 0) || (keys == nullptr && s.seq_k != 0);
    return missing ? status::invalid("documents", "a pointer is null") : status{};
  }
};

/// What two masks both keep.
template <attention_mask First, attention_mask Second>
struct mask_and {
  static constexpr bool any_range =
      detail::answers_any_range<First> && detail::answers_any_range<Second>;  ///< classify() takes ranges of any length
  static constexpr bool one_range =
      detail::one_range_mask<First> && detail::one_range_mask<Second>;  ///< the keys of a query are one range
  First a;                                                              ///< a mask
  Second b;                                                             ///< another
  /// The first key that the query sees.
  GIWA_HOST_DEVICE constexpr int first_key(attention_coord c) const
    requires(detail::has_first_key<First> || detail::has_first_key<Second>)
  {
    if constexpr (!detail::has_first_key<First>)
      return b.first_key(c);
    else if constexpr (!detail::has_first_key<Second>)
      return a.first_key(c);
    else
      return a.first_key(c) > b.first_key(c) ? a.first_key(c) : b.first_key(c);
  }
  /// The last key that the query sees.
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const
    requires(detail::has_last_key<First> || detail::has_last_key<Second>)
  {
    if constexpr (!detail::has_last_key<First>)
      return b.last_key(c);
    else if constexpr (!detail::has_last_key<Second>)
      return a.last_key(c);
    else
      return a.last_key(c) < b.last_key(c) ? a.last_key(c) : b.last_key(c);
  }
  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return a(c) && b(c); }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    const tile_keep x = detail::classify(a, t), y = x == tile_keep::none ? x : detail::classify(b, t);
    return x == tile_keep::none || y == tile_keep::none ? tile_keep::none
           : x == tile_keep::all                        ? y
           : y == tile_keep::all                        ? x
                                                        : tile_keep::some;
  }
  /// The diagonal that its parts ask for.
  GIWA_HOST_DEVICE constexpr detail::alignment_wish wish() const { return detail::wish_of(a).both(detail::wish_of(b)); }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const { return detail::check_both(a, b, s); }
};
/// What one of two masks keeps.
template <attention_mask First, attention_mask Second>
struct mask_or {
  static constexpr bool any_range =
      detail::answers_any_range<First> && detail::answers_any_range<Second>;  ///< classify() takes ranges of any length
  First a;                                                                    ///< a mask
  Second b;                                                                   ///< another
  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return a(c) || b(c); }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    const tile_keep x = detail::classify(a, t), y = x == tile_keep::all ? x : detail::classify(b, t);
    return x == tile_keep::all || y == tile_keep::all ? tile_keep::all
           : x == tile_keep::none                     ? y
           : y == tile_keep::none                     ? x
                                                      : tile_keep::some;
  }
  /// The diagonal that its parts ask for.
  GIWA_HOST_DEVICE constexpr detail::alignment_wish wish() const { return detail::wish_of(a).both(detail::wish_of(b)); }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const { return detail::check_both(a, b, s); }
};
/// What a mask does not keep.
template <attention_mask First>
struct mask_not {
  static constexpr bool any_range = detail::answers_any_range<First>;  ///< classify() takes ranges of any length
  First a;                                                             ///< a mask
  /// Whether the score counts.
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return !a(c); }
  /// What it leaves of a tile.
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    const tile_keep x = detail::classify(a, t);
    return x == tile_keep::none ? tile_keep::all : x == tile_keep::all ? tile_keep::none : x;
  }
  /// The diagonal that its parts ask for.
  GIWA_HOST_DEVICE constexpr detail::alignment_wish wish() const { return detail::wish_of(a); }
  /// The first rule that it breaks for such a problem.
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const { return detail::check_callable(a, s); }
};

/// What both masks keep.
template <attention_mask First, attention_mask Second>
GIWA_HOST_DEVICE constexpr mask_and<First, Second> operator&(const First& a, const Second& b) {
  return {a, b};
}
/// What one of two masks keeps.
template <attention_mask First, attention_mask Second>
GIWA_HOST_DEVICE constexpr mask_or<First, Second> operator|(const First& a, const Second& b) {
  return {a, b};
}
/// What a mask does not keep.
template <attention_mask First>
GIWA_HOST_DEVICE constexpr mask_not<First> operator!(const First& a) {
  return {a};
}

}  // namespace giwa::inline GIWA_ABI

#endif
