// SPDX-License-Identifier: MIT
// Splits: equal shares of the leaves of all sequences.
#ifndef GIWA_ATTENTION_WORK_SPLITS_HPP
#define GIWA_ATTENTION_WORK_SPLITS_HPP

#include <giwa/attention/problem/workspace.hpp>
#include <giwa/attention/sums/leaf_fold.hpp>
#include <giwa/attention/work/packed_rows.hpp>

namespace giwa::inline GIWA_ABI::detail {

// A work tile is a tile of packed rows of one sequence and one head of keys, with all leaves that these rows need. Work tiles
// are numbered by sequence, then head, then tile of rows, and so are their leaves; split r of a launch has the leaves [r
// length, (r + 1) length) of all, and a block computes it: whole work tiles, and at its ends shares of divided ones. If heads
// are columns, each head of keys has its own splits, all alike.

/// Returns n / d rounded down, for n >= 0 and d > 0. On a GPU a 64-bit division takes hundreds of cycles.
GIWA_HOST_DEVICE constexpr int64 quotient_of_leaves(int64 n, int d) {
  return n >> 32 == 0 ? static_cast<int64>(static_cast<uint32>(n) / static_cast<uint32>(d)) : n / d;
}
GIWA_HOST_DEVICE constexpr int quotient_of_leaves(int n, int d) {
  return static_cast<int>(static_cast<uint32>(n) / static_cast<uint32>(d));
}

/// The leaves [first, end) that the rows of a sequence need, at least one, and the number of its tiles of rows.
struct sequence_leaves {
  int first, end, row_tiles;
  GIWA_HOST_DEVICE constexpr int count() const { return end - first; }
};

/// What the host decides of a launch.
struct split_shape {
  int splits;                    // of one column of heads
  int columns;                   // heads of keys that are computed at once, each by its own blocks: all, or 1
  int heads_in_column;           // 1, or all
  int slots;                     // of a split in the workspace, enough for what it hands on; 0: no work tile is divided
  int rows;                      // rows of a partial in the workspace
  int early_tiles = 0;           // whole work tiles of a split where takes_whole_tiles(); 0: never
  int64 most_leaves;             // of a split, for which its slots are enough
  int whole_above, whole_below;  // equal shares between these become whole nodes of the tree
  // Work tiles of a column, and of a split that has whole ones, which it has if all work tiles have as many leaves; 0: never.
  int whole_tiles = 0, tiles_of_split = 1;
  // If all sequences are alike, as the host knows: the first one, the leaves of one in a column, of all, and of a split.
  cached_sequence sequence{};
  sequence_leaves leaves{};
  fast_divisor leaves_in_column{};
  int64 total = 0, length = 0;  // total is 0 if they are not alike

  /// The leaves of a split, of `all` in the column.
  template <class Int>
  GIWA_HOST_DEVICE constexpr Int length_of(Int all) const {
    if (whole_tiles > 0) {
      const Int of_tile = quotient_of_leaves(all, whole_tiles);
      if (of_tile * whole_tiles == all) return of_tile * tiles_of_split;
    }
    const Int whole = quotient_of_leaves(all, splits), equal = whole + (whole * splits != all ? 1 : 0);
    return equal > whole_above && equal < whole_below ? round_up(equal, Int{fold_levels::span(1)}) : equal;
  }
  /// Whether find_split_early() gives splits whole work tiles, of up to `most` of `all` leaves. A block alone takes some 3/4 of the time for
  /// a leaf that it takes when all blocks load, and partials of divided work tiles cost 4 leaves or more: 128 x 16(1) latent rows of 1 to
  /// 1024 keys 39 us instead of 49, of 6144 to 8192 272 instead of 292, but of 1 to 8192 236 instead of 187 (H200, 2026-11-30).
  GIWA_HOST_DEVICE constexpr bool takes_whole_tiles(int most, int all) const {
    return early_tiles > 0 &&
           (slots == 0 || 3 * int64{early_tiles} * most <= 5 * int64{quotient_of_leaves(all, splits)} + 12);
  }
  /// Says that `count` sequences are like `s`, whose leaves are `l`.
  GIWA_HOST_DEVICE constexpr void set_alike(const cached_sequence& s, const sequence_leaves& l, int64 count) {
    const int64 in_column = int64{l.count()} * l.row_tiles * heads_in_column;
    if (in_column == 0 || count == 0) return;
    sequence = s, leaves = l, leaves_in_column = fast_divisor(in_column);
    total = in_column * count, length = length_of(total);
  }
};

/// Whether leaves_of() asks the mask which leaves all rows of a sequence leave out.
template <class Mask>
inline constexpr bool mask_bounds_leaves =
    !mask_traits<Mask>::keeps_all && mask_traits<Mask>::any_range && mask_traits<Mask>::any_head;

/// The leaves of sequence s, whose packed rows make tiles of tile_rows. Leaves that the mask leaves out at both ends are
/// not counted; one in the middle that turns out to be masked is skipped later.
template <class Params>
GIWA_HOST_DEVICE sequence_leaves leaves_of(const Params& p, const cached_sequence& s, int leaf_keys, int tile_rows) {
  const int64 rows = s.queries > p.most_queries ? 0 : int64{s.queries} * p.heads_per_kv;
  sequence_leaves l{0, ceil_div(s.keys, leaf_keys), static_cast<int>(ceil_div(rows, int64{tile_rows}))};
  if constexpr (mask_bounds_leaves<stdlib::remove_cvref_t<decltype(p.mask)>>) {
    const auto is_masked = [&](int first, int count) {
      const int last = first + count < l.end ? (first + count) * leaf_keys : s.keys;
      return s.queries > 0 && classify(p.mask, score_tile{s.batch, 0, 0, s.queries - 1, first * leaf_keys, last - 1,
                                                          s.offset}) == tile_keep::none;
    };
    // All leaves at once: the answer for one new token. Then steps, which double while they are masked.
    if (s.queries > 0 && s.keys > 0 &&
        classify(p.mask, score_tile{s.batch, 0, 0, s.queries - 1, 0, s.keys - 1, s.offset}) == tile_keep::all)
      return l;
    int end = l.end;
    for (int step = 1; end > 0;) {
      if (step > end) step = end;
      if (is_masked(end - step, step))
        end -= step, step *= 2;
      else if (step == 1)
        break;
      else
        step /= 2;
    }
    // Where the first query begins: else a window of 1024 of 16384 keys takes 14 steps.
    if constexpr (has_first_key<stdlib::remove_cvref_t<decltype(p.mask)>>) {
      const int first = p.mask.first_key(attention_coord{s.batch, 0, 0, 0, s.offset}) / leaf_keys;
      if (first > 0 && first < end && is_masked(0, first)) l.first = first;
    }
    for (int step = 1; l.first < end;) {
      if (step > end - l.first) step = end - l.first;
      if (is_masked(l.first, step))
        l.first += step, step *= 2;
      else if (step == 1)
        break;
      else
        step /= 2;
    }
    l.end = end;
  }
  if (l.end <= l.first) l.end = l.first + 1;  // rows without keys are written too
  return l;
}

/// A work tile, or a share of it: the leaves [begin, end), which one block computes.
struct few_rows_work_tile {
  cached_sequence sequence;
  sequence_leaves leaves;
  int head, row_tile;  // of keys; of packed rows
  int begin, end;
  GIWA_HOST_DEVICE bool has_beginning() const { return begin == leaves.first; }
  GIWA_HOST_DEVICE bool has_end() const { return end == leaves.end; }
  /// The first leaf as split_partials and leaf_fold take it.
  GIWA_HOST_DEVICE int fold_begin() const { return has_beginning() ? 0 : begin; }
};

/// Where a split begins among the leaves of a column.
struct split_position {
  // Where its first leaf lies: in which sequence, and how many leaves of that come before. Not set if it has no leaves.
  cached_sequence sequence;
  sequence_leaves leaves_of_sequence;
  int64 before;
  int64 number, length;  // its number, and the leaves of every split but the last ones
  int64 total;           // leaves of the column
  GIWA_HOST_DEVICE int64 begin() const { return number * length; }
  /// The number of its leaves, at most 0 if the splits before have all.
  GIWA_HOST_DEVICE int64 leaves() const { return total - begin() < length ? total - begin() : length; }
  /// The slots of split_shape to use: no work tile is divided if splits have more leaves than the host took for the most, which
  /// they have if offsets of packed queries decrease.
  GIWA_HOST_DEVICE int slots(const split_shape& shape) const { return length > shape.most_leaves ? 0 : shape.slots; }
};

/// Walks the work tiles of a split. All threads that need them walk by themselves.
template <class Params>
class split_walk {
 public:
  GIWA_HOST_DEVICE split_walk(const Params& p, const split_shape& shape, int column, int leaf_keys, int tile_rows)
      : p_(p), heads_in_column_(shape.heads_in_column), column_(column), leaf_keys_(leaf_keys), tile_rows_(tile_rows) {}

  /// Goes before the first work tile of a split.
  GIWA_HOST_DEVICE void enter(const split_shape& shape, const split_position& split) {
    divides_ = split.slots(shape) > 0;
    left_ = split.leaves();
    if (left_ <= 0) return;
    work_.sequence = split.sequence, work_.leaves = split.leaves_of_sequence;
    const int count = work_.leaves.count();
    next_tile_ = static_cast<int>(quotient_of_leaves(split.before, count));
    skip_ = static_cast<int>(split.before - int64{next_tile_} * count);
  }
  /// Goes to the first work tile of a split that find_split_early() has found, and returns false if it has none.
  GIWA_HOST_DEVICE bool enter_early(const split_position& split) {
    const auto count = static_cast<int>(split.leaves()), first = static_cast<int>(split.before);
    divides_ = true, left_ = count;
    if (count <= 0) return false;
    const int leaves = split.leaves_of_sequence.end,
              tile = heads_in_column_ == 1 ? 0 : quotient_of_leaves(first, leaves);
    const int begin = first - tile * leaves, end = begin + count < leaves ? begin + count : leaves;
    work_ = {split.sequence, split.leaves_of_sequence, heads_in_column_ == 1 ? column_ : tile, 0, begin, end};
    next_tile_ = tile + 1, left_ = count - (end - begin);
    return true;
  }

  /// Moves to the next work tile; false after the last.
  GIWA_HOST_DEVICE bool next() {
    for (;;) {
      while (left_ > 0 && next_tile_ == heads_in_column_ * work_.leaves.row_tiles) {
        const int next = work_.sequence.batch + 1;
        if (next == p_.views.sequence_count()) {
          left_ = 0;
        } else {
          work_.sequence = p_.at(next);
          work_.leaves = leaves_of(p_, work_.sequence, leaf_keys_, tile_rows_);
          next_tile_ = 0;
        }
      }
      if (left_ <= 0) return false;
      const int tile = next_tile_++;
      work_.head = column_, work_.row_tile = tile;
      if (heads_in_column_ != 1)
        work_.head = tile / work_.leaves.row_tiles, work_.row_tile = tile % work_.leaves.row_tiles;
      work_.begin = work_.leaves.first + skip_;
      work_.end = work_.leaves.end;
      const int skipped = skip_, count = work_.end - work_.begin;
      skip_ = 0;
      if (!divides_) {  // a work tile belongs to the split in which it begins
        left_ -= count;
        if (skipped > 0) continue;
        return true;
      }
      if (count > left_) work_.end = work_.begin + static_cast<int>(left_);
      left_ -= work_.end - work_.begin;
      return true;
    }
  }
  GIWA_HOST_DEVICE const few_rows_work_tile& work() const { return work_; }

 private:
  const Params& p_;
  const int heads_in_column_, column_, leaf_keys_, tile_rows_;
  bool divides_ = false;  // work tiles
  int64 left_ = 0;        // leaves of the split
  int next_tile_ = 0;     // the next one of the sequence
  int skip_ = 0;          // leaves of that work tile that earlier splits have
  few_rows_work_tile work_{};
};

/// The packed rows of a work tile.
template <class Params>
GIWA_HOST_DEVICE packed_rows rows_of(const Params& p, const few_rows_work_tile& work, const fast_divisor& group,
                                     int tile_rows) {
  const cached_sequence& s = work.sequence;
  const int first = work.row_tile * tile_rows, all = s.queries * p.heads_per_kv;
  return {s.batch,   work.head * p.heads_per_kv,
          first,     all - first < tile_rows ? all - first : tile_rows,
          s.queries, s.keys,
          s.offset,  group};
}

/// All slots of a split: for the partials of the work tile that began before it, and for those of the one that it begins.
GIWA_HOST_DEVICE constexpr int64 all_slots(const split_shape& s) { return s.slots + fold_levels::count; }

/// Bytes of the workspace of a launch.
GIWA_HOST_DEVICE constexpr int64 workspace_bytes_of(const split_shape& s, int64 columns) {
  if (s.slots == 0) return 0;
  const int64 floats = saturated_product(all_slots(s), partial_slot::floats(s.rows, columns));
  return saturated_product(saturated_product(floats, int64{sizeof(float)}), int64{s.splits} * s.columns);
}

/// The parameters of a launch that divides leaves into splits, and of the launch that merges them.
template <class Call>
struct split_params {
  Call call;
  split_shape shape;
  float* workspace;
  fast_divisor group;
  int leaf_keys, tile_rows, columns;  // columns: of a partial
  bool early;                         // may_find_early()
  bool waits_late = early;            // blocks find their splits, early or from what the host knows, before they wait

  /// The slot of partial number `i` that a split hands on: of the work tile that it begins, or of the one that began before.
  GIWA_HOST_DEVICE float* slot_of(int64 split, int column, bool begins, int i) const {
    const int64 slot = (split * shape.columns + column) * all_slots(shape) + (begins ? shape.slots : 0) + i;
    return workspace + slot * partial_slot::floats(shape.rows, columns);
  }
};

/// Whether the leaves of a call are those of row_tile_params, and are merged one after the other (ordered_partials).
template <class Call>
inline constexpr bool merges_in_order = requires { typename Call::merged_in_order; };

/// The same with tiles of work_rows packed rows, which the splits take for heads of keys, so that blocks that read the same keys run
/// at once. Sequences have as many; not so packed queries, whose tiles follow each other.
template <class Call>
struct row_tile_params : split_params<Call> {
  int work_rows;
  int row_tiles;  // of a sequence and a head of keys; 0: tiles follow each other

  GIWA_HOST_DEVICE few_rows_work_tile placed(few_rows_work_tile work) const {
    if (row_tiles > 0) work.row_tile = work.head % row_tiles, work.head /= row_tiles;
    return work;
  }
};

/// The packed rows of a work tile of a walk.
template <class Call>
GIWA_HOST_DEVICE packed_rows rows_of(const split_params<Call>& p, const few_rows_work_tile& work) {
  return rows_of(p.call, work, p.group, p.tile_rows);
}
template <class Call>
GIWA_HOST_DEVICE packed_rows rows_of(const row_tile_params<Call>& p, const few_rows_work_tile& work) {
  return rows_of(p.call, p.placed(work), p.group, p.work_rows);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
