// SPDX-License-Identifier: MIT
// What each step of a ring computes and sends: the rows that the mask lets a rank see of another rank's slice.
#ifndef GIWA_MULTI_RING_PLAN_HPP
#define GIWA_MULTI_RING_PLAN_HPP

#include <giwa/multi/slice_mask.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The smallest range that contains both.
GIWA_HOST_DEVICE constexpr token_range hull(const token_range& a, const token_range& b) {
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const int64 first = a.first < b.first ? a.first : b.first, end = a.end() > b.end() ? a.end() : b.end();
  return {first, end - first};
}

/// A ring of ranks. In step t, rank r computes with the keys of rank (r - t) modulo the number of ranks: its own first, then
/// those that its neighbours pass on. Every rank computes the same plan, so nothing about it needs to be sent.
template <class Mask>
struct ring_plan {
  const Mask& mask;
  const sequence_slices& slices;
  int ranks;
  int offset;  // diagonal - query, in the whole sequence

  GIWA_HOST_DEVICE constexpr int wrapped(int rank) const {
    return rank < 0 ? rank + ranks : rank >= ranks ? rank - ranks : rank;
  }
  GIWA_HOST_DEVICE constexpr int owner(int rank, int step) const { return wrapped(rank - step); }
  GIWA_HOST_DEVICE constexpr int visitor(int of, int step) const { return wrapped(of + step); }

  /// The rows of the slice of `of` that some row of the slice of `rank` may see.
  GIWA_HOST_DEVICE constexpr token_range keys_seen(int rank, int of) const {
    const token_slice queries = slices.of(rank, ranks), keys = slices.of(of, ranks);
    if (queries.count() == 0) return {};
    return seen(keys.count(), [&](const token_range& part) { return sees(queries, {0, queries.count()}, keys, part); });
  }
  /// The rows of the slice of `rank` that may see some row of the slice of `of`.
  GIWA_HOST_DEVICE constexpr token_range queries_seeing(int rank, int of) const {
    const token_slice queries = slices.of(rank, ranks), keys = slices.of(of, ranks);
    if (keys.count() == 0) return {};
    return seen(queries.count(), [&](const token_range& part) { return sees(queries, part, keys, {0, keys.count()}); });
  }
  /// The rows of the slice of `of` that travel to its visitor in step `step`: what that rank and those after it see.
  GIWA_HOST_DEVICE constexpr token_range travelling(int of, int step) const {
    token_range all{};
    for (int t = step; t < ranks; ++t) all = hull(all, keys_seen(visitor(of, t), of));
    return all;
  }
  /// The last step in which `rank` computes.
  GIWA_HOST_DEVICE constexpr int last_step(int rank) const {
    for (int t = ranks - 1; t > 0; --t)
      if (keys_seen(rank, owner(rank, t)).count > 0) return t;
    return 0;
  }
  /// The rows of `rank` that see something in a step after `step`, from the first to the last.
  struct later_rows {
    token_range rows;
    bool has_gaps;  // some of them, in the middle, do not
  };
  GIWA_HOST_DEVICE constexpr later_rows later(int rank, int step) const {
    later_rows all{};
    for (int t = ranks - 1; t > step; --t) {
      const token_range rows = queries_seeing(rank, owner(rank, t));
      const bool touch = rows.first <= all.rows.end() && all.rows.first <= rows.end();
      all.has_gaps = all.has_gaps || (rows.count > 0 && all.rows.count > 0 && !touch);
      all.rows = hull(all.rows, rows);
    }
    return all;
  }
  /// Where the rows of `rank` from `first_query` on are, and the keys of `of` from row `first_key` on.
  GIWA_HOST_DEVICE constexpr slice_mask<Mask> mask_of(int rank, int64 first_query, int of, int64 first_key) const {
    return {mask, row_positions::of(slices.of(rank, ranks), first_query),
            row_positions::of(slices.of(of, ranks), first_key), offset};
  }
  /// The same mask for a call on these rows and keys, as simple as it can be. The positions of a slice ascend, so a rank's own
  /// slice has the causal mask of its rows; and of another slice, whose pieces are all before or all after each of this rank's,
  /// the rows that see some keys of keys_seen() see all of them. Where all are seen the mask is causal too, with a diagonal
  /// past the end: under a mask, blocks pull work tiles from a counter, so that none waits for a multiprocessor on which
  /// messages are copied.
  GIWA_HOST_DEVICE constexpr auto call_mask(const slice_mask<Mask>& m, int step, const token_range& rows,
                                            const token_range& keys) const {
    using traits = mask_traits<Mask>;
    if constexpr (traits::keeps_all || traits::is_causal)
      return causal{alignment::offset(step == 0 && traits::is_causal ? rows.first - keys.first : keys.count)};
    else
      return m;
  }

 private:
  GIWA_HOST_DEVICE constexpr bool sees(const token_slice& queries, const token_range& rows, const token_slice& keys,
                                       const token_range& columns) const {
    const score_tile tile{0,
                          0,
                          static_cast<int>(rows.first),
                          static_cast<int>(rows.end() - 1),
                          static_cast<int>(columns.first),
                          static_cast<int>(columns.end() - 1),
                          offset};
    return keep_of_slices(row_positions::of(queries), row_positions::of(keys), offset, tile, [&](const score_tile& t) {
             if constexpr (mask_traits<Mask>::is_causal)
               return keep_by_traits<Mask>(t);  // exact, as call_mask() needs it
             else
               return keep_on_host<Mask>::of(mask, t);
           }) != tile_keep::none;
  }
  /// The smallest range of [0, count) outside of which `may` says no, by bisection: no to a range is no to its parts.
  template <class May>
  GIWA_HOST_DEVICE static constexpr token_range seen(int64 count, const May& may) {
    if (count == 0 || !may(token_range{0, count})) return {};
    int64 low = 0, high = count - 1;  // the first row that is seen is in [low, high]
    while (low < high) {
      const int64 middle = low + (high - low) / 2;
      if (may(token_range{low, middle - low + 1}))
        high = middle;
      else
        low = middle + 1;
    }
    const int64 first = low;
    high = count - 1;
    while (low < high) {
      const int64 middle = high - (high - low) / 2;
      if (may(token_range{middle, high - middle + 1}))
        low = middle;
      else
        high = middle - 1;
    }
    return {first, low - first + 1};
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
