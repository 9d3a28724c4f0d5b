// SPDX-License-Identifier: MIT
// The built-in masks: full, causal, windows, prefixes and segments.
#ifndef GIWA_ATTENTION_PROBLEM_MASKS_HPP
#define GIWA_ATTENTION_PROBLEM_MASKS_HPP

#include <giwa/attention/problem/mask.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

GIWA_HOST_DEVICE constexpr status check_window(const char* argument, int count) {
  if (count >= 0) return {};
  return status::invalid(argument, "a window's number of keys is negative", bound::at_least, 0, count);
}
GIWA_HOST_DEVICE constexpr tile_keep keep_of(bool keeps_all, bool keeps_any) {
  return keeps_all ? tile_keep::all : keeps_any ? tile_keep::some : tile_keep::none;
}

}  // namespace detail

/// Keeps every key.
struct full {
  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  static constexpr bool one_range = true;
  static constexpr bool keeps_all = true;
  GIWA_HOST_DEVICE static constexpr bool known_on_host() { return true; }
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord) const { return 2147483647; }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord) const { return true; }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile&) const { return tile_keep::all; }
  ///@}
};

/// Keeps the keys up to the diagonal: `causal{}` where the lengths agree, else `causal::top_left`,
/// `causal::bottom_right` or `causal{alignment::offset(n)}`.
struct causal {
  alignment align{};                 ///< of the diagonal; must be set where the lengths differ
  static const causal top_left;      ///< the diagonal is key = query
  static const causal bottom_right;  ///< the last query sees the last key

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  static constexpr bool one_range = true;
  static constexpr bool ends_at_diagonal = true;
  static constexpr bool keeps_to_diagonal = true;
  GIWA_HOST_DEVICE static constexpr bool known_on_host() { return true; }
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const { return c.diagonal; }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return c.key <= c.diagonal; }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return detail::keep_of(t.last_key <= t.first_diagonal(), t.first_key <= t.last_diagonal());
  }
  ///@}
};
inline constexpr causal causal::top_left{alignment::top_left};
inline constexpr causal causal::bottom_right{alignment::bottom_right};

/// Keeps the keys from `count` before the diagonal on. Together with causal: the query's own key and `count` before it.
struct keys_back {
  int count;          ///< number of keys before the diagonal, at least 0
  alignment align{};  ///< of the diagonal; must be set where the lengths differ

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  static constexpr bool one_range = true;
  GIWA_HOST_DEVICE static constexpr bool known_on_host() { return true; }
  GIWA_HOST_DEVICE constexpr int first_key(attention_coord c) const {
    return detail::saturating_sum(c.diagonal, -count);
  }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return c.key >= first_key(c); }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return detail::keep_of(int64{t.first_key} >= int64{t.last_diagonal()} - count,
                           int64{t.last_key} >= int64{t.first_diagonal()} - count);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return detail::check_window("keys_back", count);
  }
  ///@}
};

/// Keeps the keys up to `count` after the diagonal.
struct keys_ahead {
  int count;          ///< number of keys after the diagonal, at least 0
  alignment align{};  ///< of the diagonal; must be set where the lengths differ

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  static constexpr bool one_range = true;
  static constexpr bool keeps_to_diagonal = true;
  GIWA_HOST_DEVICE static constexpr bool known_on_host() { return true; }
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const { return detail::saturating_sum(c.diagonal, count); }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return c.key <= last_key(c); }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return detail::keep_of(int64{t.last_key} <= int64{t.first_diagonal()} + count,
                           int64{t.first_key} <= int64{t.last_diagonal()} + count);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return detail::check_window("keys_ahead", count);
  }
  ///@}
};

/// Keeps the last `count` keys up to the diagonal, which include the query's own key.
struct sliding_window {
  int count;          ///< number of keys, at least 0
  alignment align{};  ///< of the diagonal; must be set where the lengths differ

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  static constexpr bool one_range = true;
  static constexpr bool ends_at_diagonal = true;
  GIWA_HOST_DEVICE static constexpr bool known_on_host() { return true; }
  GIWA_HOST_DEVICE constexpr int first_key(attention_coord c) const {
    return detail::saturating_sum(c.diagonal, 1 - count);
  }
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const { return c.diagonal; }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const {
    return first_key(c) <= c.key && c.key <= last_key(c);
  }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return detail::keep_of(t.last_key <= t.first_diagonal() && int64{t.first_key} > int64{t.last_diagonal()} - count,
                           t.first_key <= t.last_diagonal() && int64{t.last_key} > int64{t.first_diagonal()} - count);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return detail::check_window("sliding_window", count);
  }
  ///@}
};

/// Keeps the first `count` keys, or of each sequence its own number. With causal it is the mask of a prefix language
/// model:
/// `prefix{100} | causal{}`.
struct prefix {
  int count = 0;                ///< number of keys, at least 0
  const int* counts = nullptr;  ///< (batch), readable by the kernel; replaces `count` where it is not null

  /// The number of keys of a sequence. A number below 0 in `counts` counts as 0.
  GIWA_HOST_DEVICE constexpr int of(int batch) const {
    if (counts == nullptr) return count;
    const int own = counts[batch];
    return own < 0 ? 0 : own;  // so that of() - 1 does not overflow
  }

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  static constexpr bool one_range = true;
  GIWA_HOST_DEVICE constexpr bool known_on_host() const { return counts == nullptr; }
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const { return of(c.batch) - 1; }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return c.key <= last_key(c); }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    const int n = of(t.batch);
    return detail::keep_of(t.last_key < n, t.first_key < n);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    return detail::check_window("prefix", count);
  }
  ///@}
};

/// Keeps the keys whose id equals the query's id: a block-diagonal mask for documents that share a sequence.
struct segment_ids {
  const int* queries;      ///< ids of the queries, (batch, queries), readable by the kernel
  const int* keys;         ///< ids of the keys, (batch, keys), readable by the kernel
  int64 query_stride = 0;  ///< elements from a sequence's query ids to the next sequence's
  int64 key_stride = 0;    ///< elements from a sequence's key ids to the next sequence's
  bool ascending = false;  ///< promises that ids never decrease along a sequence: fully masked tiles are skipped

  /// The id of a row.
  ///@{
  GIWA_HOST_DEVICE constexpr int of_query(int batch, int query) const { return queries[batch * query_stride + query]; }
  GIWA_HOST_DEVICE constexpr int of_key(int batch, int key) const { return keys[batch * key_stride + key]; }
  ///@}

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const {
    return of_query(c.batch, c.query) == of_key(c.batch, c.key);
  }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    if (!ascending) return tile_keep::some;
    const int first_query = of_query(t.batch, t.first_query), last_query = of_query(t.batch, t.last_query);
    const int first_key = of_key(t.batch, t.first_key), last_key = of_key(t.batch, t.last_key);
    return detail::keep_of(first_query == last_query && first_key == last_key && first_query == first_key,
                           first_query <= last_key && first_key <= last_query);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    const bool missing = (queries == nullptr && s.seq_q != 0) || (keys == nullptr && s.seq_k != 0);
    return missing ? status::invalid("segment_ids", "a pointer is null") : status{};
  }
  ///@}
};

}  // namespace giwa::inline GIWA_ABI

#endif
