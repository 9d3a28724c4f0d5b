// SPDX-License-Identifier: MIT
// Masks and score modifiers of a whole sequence, as a rank sees them that has a slice of the queries and one of the keys.
#ifndef GIWA_MULTI_SLICE_MASK_HPP
#define GIWA_MULTI_SLICE_MASK_HPP

#include <giwa/attention/problem/mask_combinators.hpp>
#include <giwa/attention/problem/masks.hpp>
#include <giwa/attention/problem/score.hpp>
#include <giwa/multi/sequence_slices.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Where the rows of a tensor are in the whole sequence. Positions increase with the row.
struct row_positions {
  int split;   // rows of the first range
  int first;   // position of a row of the first range, minus the row
  int second;  // the same for the second range

  /// The rows of `slice` from number `begin` on.
  GIWA_HOST_DEVICE static constexpr row_positions of(const token_slice& slice, int64 begin = 0) {
    const int64 split = slice.ranges[0].count, first = slice.ranges[0].first,
                second = slice.ranges[1].first - slice.ranges[0].count;
    if (slice.ranges[1].count == 0) return {2147483647, static_cast<int>(first + begin), 0};
    return {static_cast<int>(split - begin), static_cast<int>(first + begin), static_cast<int>(second + begin)};
  }
  GIWA_HOST_DEVICE constexpr int operator()(int row) const { return row + (row < split ? first : second); }
  /// The last row at or before a position, the first one at or after it; out of range where there is none.
  ///@{
  GIWA_HOST_DEVICE constexpr int last_until(int position) const {
    if (split != 2147483647 && position >= second + split) return position - second;
    const int row = saturating_sum(position, -first);
    return row < split ? row : split - 1;
  }
  GIWA_HOST_DEVICE constexpr int first_from(int position) const {
    const int row = saturating_sum(position, -first);
    if (row < split) return row;
    const int later = saturating_sum(position, -second);
    return later > split ? later : split;
  }
  ///@}
};

/// What a mask keeps of a tile of rows, from what it keeps (`of_whole`) of the one, two or four tiles of the whole
/// sequence that it is.
template <class Keep>
GIWA_HOST_DEVICE constexpr tile_keep keep_of_slices(const row_positions& queries, const row_positions& keys, int offset,
                                                    const score_tile& t, const Keep& of_whole) {
  const bool splits_queries = t.first_query < queries.split && t.last_query >= queries.split;
  const bool splits_keys = t.first_key < keys.split && t.last_key >= keys.split;
  if (!splits_queries && !splits_keys)  // nearly always: the kernels ask for each K tile
    return of_whole(score_tile{t.batch, t.head, queries(t.first_query), queries(t.last_query), keys(t.first_key),
                               keys(t.last_key), offset});
  tile_keep all = tile_keep::some;
  for (int i = 0; i <= static_cast<int>(splits_queries); ++i)
    for (int j = 0; j <= static_cast<int>(splits_keys); ++j) {
      const int first_query = i == 0 ? t.first_query : queries.split, first_key = j == 0 ? t.first_key : keys.split;
      const int last_query = splits_queries && i == 0 ? queries.split - 1 : t.last_query;
      const int last_key = splits_keys && j == 0 ? keys.split - 1 : t.last_key;
      const tile_keep part = of_whole(score_tile{t.batch, t.head, queries(first_query), queries(last_query),
                                                 keys(first_key), keys(last_key), offset});
      if (part == tile_keep::some || (i + j > 0 && part != all)) return tile_keep::some;
      all = part;
    }
  return all;
}

/// A mask of the whole sequence for a call on rows of it. Only the positions count: the diagonal of the call does not.
template <class Mask>
struct slice_mask {
  Mask mask;
  row_positions queries, keys;
  int offset;  // diagonal - query, in the whole sequence

  static constexpr bool any_range = mask_traits<Mask>::any_range;
  static constexpr bool any_head = mask_traits<Mask>::any_head;
  static constexpr bool one_range = mask_traits<Mask>::one_range;

  GIWA_HOST_DEVICE constexpr attention_coord whole(attention_coord c) const {
    const int query = queries(c.query);
    return {c.batch, c.head, query, keys(c.key), query + offset};
  }
  GIWA_HOST_DEVICE constexpr int first_key(attention_coord c) const
    requires has_first_key<Mask>
  {
    const int query = queries(c.query);
    return keys.first_from(mask.first_key({c.batch, c.head, query, 0, query + offset}));
  }
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const
    requires has_last_key<Mask>
  {
    const int query = queries(c.query);
    return keys.last_until(mask.last_key({c.batch, c.head, query, 0, query + offset}));
  }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return mask(whole(c)); }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const
    requires requires { mask.classify(t); }
  {
    return keep_of_slices(queries, keys, offset, t, [&](const score_tile& part) { return mask.classify(part); });
  }
};

/// A score modifier of the whole sequence for a call on rows of it.
template <class Score>
struct slice_score {
  Score score;
  row_positions queries, keys;
  int offset;

  GIWA_HOST_DEVICE constexpr attention_coord whole(attention_coord c) const {
    const int query = queries(c.query);
    return {c.batch, c.head, query, keys(c.key), query + offset};
  }
  GIWA_HOST_DEVICE float operator()(float x, attention_coord c) const { return score(x, whole(c)); }
  GIWA_HOST_DEVICE dual<float> value_and_slope(float x, attention_coord c) const
    requires has_slope<Score>
  {
    return detail::value_and_slope(score, x, whole(c));
  }
};

/// What a mask keeps of a tile, found on the host. Of masks that may read the memory of a GPU mask_traits say it. Combinations
/// know what their known parts say.
template <class Mask>
struct keep_on_host {
  GIWA_HOST_DEVICE static constexpr tile_keep of(const Mask& mask, const score_tile& t) {
    // A tile here is a whole slice, of head 0 for all heads.
    using traits = mask_traits<Mask>;
    const bool answers = traits::any_range && traits::any_head && traits::known_on_host(mask);
    return answers ? classify(mask, t) : keep_by_traits<Mask>(t);
  }
};
/// A mask that answers what is known of another one.
template <class Mask>
struct host_knowledge {
  const Mask& mask;
  static constexpr bool any_range = true, any_head = true;
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord) const { return true; }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const { return keep_on_host<Mask>::of(mask, t); }
};
template <class First, class Second, bool Both>
struct keep_on_host<mask_pair<First, Second, Both>> {
  GIWA_HOST_DEVICE static constexpr tile_keep of(const mask_pair<First, Second, Both>& m, const score_tile& t) {
    return mask_pair<host_knowledge<First>, host_knowledge<Second>, Both>{{m.a}, {m.b}}.classify(t);
  }
};
template <class First>
struct keep_on_host<mask_not<First>> {
  GIWA_HOST_DEVICE static constexpr tile_keep of(const mask_not<First>& m, const score_tile& t) {
    return mask_not<host_knowledge<First>>{{m.a}}.classify(t);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
