// SPDX-License-Identifier: MIT
// Runs: equal shares of the leaves of all sequences, which blocks find by themselves from the lengths.
#ifndef GIWA_ATTENTION_CACHED_RUNS_HPP
#define GIWA_ATTENTION_CACHED_RUNS_HPP

#include <giwa/attention/cached/leaf_fold.hpp>
#include <giwa/attention/cached/packed_rows.hpp>
#include <giwa/attention/problem/workspace.hpp>

namespace giwa::inline GIWA_ABI::detail {

// A unit is a tile of packed rows of one sequence and one head of keys, with all leaves that these rows need. Units are
// numbered by sequence, then head, then tile of rows, and so are their leaves; run r of a launch has the leaves [r
// run_length, (r + 1) run_length) of all. If heads are columns, each head of keys has its own runs, all alike.

/// The leaves [first, end) that the rows of a sequence need, at least one, and the number of its tiles of rows.
struct sequence_leaves {
  int first, end, row_tiles;
  GIWA_HOST_DEVICE int count() const { return end - first; }
};

/// What the host decides of a launch.
struct run_shape {
  int runs;             // of one column of heads
  int columns;          // heads of keys that are computed at once, each by its own blocks: all, or 1
  int heads_in_column;  // 1, or all
  int states;           // slots of a run in the workspace, of run_states::most(); 0: no unit is divided
  int rows;             // rows of a state in the workspace
  int64 most_leaves;    // of a run, for which its slots are enough
  // If all sequences are alike, as the host knows: leaves of one sequence in a column, and of all. Else 0.
  int64 sequence_leaves = 0, total = 0;
};

/// Whether leaves_of() asks the mask which leaves all rows of a sequence leave out.
template <class Mask>
inline constexpr bool mask_bounds_leaves =
    !stdlib::same_as<Mask, full> && answers_any_range<Mask> && answers_any_head<Mask>;

/// The leaves of sequence s, whose packed rows make tiles of tile_rows. Leaves that the mask leaves out at both ends are
/// not counted; one in the middle that turns out to be masked is skipped later.
template <class Params>
GIWA_HOST_DEVICE sequence_leaves leaves_of(const Params& p, const cached_sequence& s, int leaf_keys, int tile_rows) {
  const int64 rows = int64{s.queries} * p.heads_per_kv;
  sequence_leaves l{0, ceil_div(s.keys, leaf_keys), static_cast<int>(ceil_div(rows, int64{tile_rows}))};
  if constexpr (mask_bounds_leaves<stdlib::remove_cvref_t<decltype(p.mask)>>) {
    const auto is_masked = [&](int first, int count) {
      const int last = first + count < l.end ? (first + count) * leaf_keys : s.keys;
      return s.queries > 0 && classify(p.mask, score_tile{s.batch, 0, 0, s.queries - 1, first * leaf_keys, last - 1,
                                                          s.offset}) == tile_keep::none;
    };
    // Runs of leaves are classified at once, and the run doubles while it is masked.
    int end = l.end;
    for (int run = 1; end > 0;) {
      if (run > end) run = end;
      if (is_masked(end - run, run))
        end -= run, run *= 2;
      else if (run == 1)
        break;
      else
        run /= 2;
    }
    for (int run = 1; l.first < end;) {
      if (run > end - l.first) run = end - l.first;
      if (is_masked(l.first, run))
        l.first += run, run *= 2;
      else if (run == 1)
        break;
      else
        run /= 2;
    }
    l.end = end;
  }
  if (l.end <= l.first) l.end = l.first + 1;  // rows without keys are written too
  return l;
}

/// A range [begin, end) of the leaves of a unit, that one block computes.
struct run_item {
  cached_sequence sequence;
  sequence_leaves leaves;
  int head, row_tile;  // of keys; of packed rows
  int begin, end;
  GIWA_HOST_DEVICE bool has_beginning() const { return begin == leaves.first; }
  GIWA_HOST_DEVICE bool has_end() const { return end == leaves.end; }
  /// The first leaf as run_states and leaf_fold take it.
  GIWA_HOST_DEVICE int fold_begin() const { return has_beginning() ? 0 : begin; }
};

/// Where a leaf of the numbering lies: the sequence, and how many leaves of it come before.
struct leaf_position {
  int sequence;
  int64 before;
};

/// The division of a launch into runs, in shared memory.
struct run_search {
  leaf_position found;  // the first leaf of a run
  int64 total;          // leaves of one column
  int64 warp_sums[32];
  GIWA_HOST_DEVICE int64 run_length(const run_shape& shape) const { return ceil_div(total, int64{shape.runs}); }
  /// The shape to use: no unit is divided if runs have more leaves than the host took for the most, which they have if
  /// offsets of packed queries decrease.
  GIWA_HOST_DEVICE run_shape checked(run_shape shape) const {
    if (run_length(shape) > shape.most_leaves) shape.states = 0;
    return shape;
  }
};

/// Sums x over the threads of smaller rank; `sum` becomes the sum over all. All threads of the block call it.
template <class Block>
GIWA_HOST_DEVICE int64 exclusive_scan(const Block& block, int64 x, int64 (&warp_sums)[32], int64& sum) {
  int64 inclusive = x;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int64 below = block.shuffle_up(inclusive, distance);
    if (block.lane() >= distance) inclusive += below;
  }
  block.sync();  // the sums of the previous call have been read
  if (block.lane() == 31) warp_sums[block.warp()] = inclusive;
  block.sync();
  int64 before = 0;
  sum = 0;
  for (int w = 0; w < block.size() / 32; ++w) {
    if (w == block.warp()) before = sum;
    sum += warp_sums[w];
  }
  return before + inclusive - x;
}

/// Finds the total number of leaves and the first leaf of a run, from the lengths in memory. All threads of the block
/// call it; it ends with a barrier.
template <class Block, class Params>
GIWA_HOST_DEVICE void find_run(const Block& block, const Params& p, const run_shape& shape, int64 run, int leaf_keys,
                               int tile_rows, run_search& s) {
  const int64 sequences = p.views.sequence_count();
  const auto leaves = [&](int64 b) -> int64 {
    if (b >= sequences) return 0;
    const sequence_leaves l = leaves_of(p, p.at(static_cast<int>(b)), leaf_keys, tile_rows);
    return int64{l.count()} * l.row_tiles * shape.heads_in_column;
  };
  const bool alike = shape.total > 0;
  int64 sum = 0, total = shape.total, own = shape.sequence_leaves, before = 0;
  if (!alike)
    for (int64 first = 0; first < sequences; first += block.size()) {
      own = leaves(first + block.rank());
      before = exclusive_scan(block, own, s.warp_sums, sum);
      total += sum;
    }
  const int64 position = run * ceil_div(total, int64{shape.runs});
  if (block.rank() == 0) {
    s.total = total;
    s.found = {0, 0};
    if (alike && position < total) {
      s.found.sequence = static_cast<int>(position / own);
      s.found.before = position - s.found.sequence * own;
    }
  }
  block.sync();
  if (!alike && position < total) {
    int64 earlier = 0;
    for (int64 first = 0; first < sequences; first += block.size()) {
      if (sequences > block.size()) {  // else both are known
        own = leaves(first + block.rank());
        before = exclusive_scan(block, own, s.warp_sums, sum);
      }
      const int64 begin = earlier + before;
      if (begin <= position && position < begin + own)
        s.found = {static_cast<int>(first) + block.rank(), position - begin};
      earlier += sum;
    }
  }
  block.sync();
}

/// Walks the items of a run. All threads that need them walk by themselves.
template <class Params>
class run_walk {
 public:
  /// From `at`, for the next `leaves` leaves.
  GIWA_HOST_DEVICE run_walk(const Params& p, const run_shape& shape, int column, const leaf_position& at, int64 leaves,
                            int leaf_keys, int tile_rows)
      : p_(p), shape_(shape), column_(column), leaf_keys_(leaf_keys), tile_rows_(tile_rows), left_(leaves) {
    item_.sequence.batch = at.sequence;
    if (left_ <= 0) return;
    enter();
    const int64 unit = at.before / item_.leaves.count();
    skip_ = static_cast<int>(at.before - unit * item_.leaves.count());
    unit_ = static_cast<int>(unit);
  }

  /// Moves to the next item; false after the last.
  GIWA_HOST_DEVICE bool next() {
    for (;;) {
      while (left_ > 0 && unit_ == units()) {
        if (++item_.sequence.batch == p_.views.sequence_count()) left_ = 0;
        if (left_ > 0) enter();
      }
      if (left_ <= 0) return false;
      const int unit = unit_++;
      item_.head = shape_.heads_in_column == 1 ? column_ : unit / item_.leaves.row_tiles;
      item_.row_tile = shape_.heads_in_column == 1 ? unit : unit % item_.leaves.row_tiles;
      item_.begin = item_.leaves.first + skip_;
      item_.end = item_.leaves.end;
      const int skipped = skip_, count = item_.end - item_.begin;
      skip_ = 0;
      if (shape_.states == 0) {  // a unit belongs to the run in which it begins
        left_ -= count;
        if (skipped > 0) continue;
        return true;
      }
      if (count > left_) item_.end = item_.begin + static_cast<int>(left_);
      left_ -= item_.end - item_.begin;
      return true;
    }
  }
  GIWA_HOST_DEVICE const run_item& item() const { return item_; }

 private:
  GIWA_HOST_DEVICE int units() const { return shape_.heads_in_column * item_.leaves.row_tiles; }
  GIWA_HOST_DEVICE void enter() {
    item_.sequence = p_.at(item_.sequence.batch);
    item_.leaves = leaves_of(p_, item_.sequence, leaf_keys_, tile_rows_);
    unit_ = 0;
  }

  const Params& p_;
  const run_shape shape_;
  const int column_, leaf_keys_, tile_rows_;
  int64 left_;
  int unit_ = 0, skip_ = 0;
  run_item item_{};
};

/// The packed rows of an item.
template <class Params>
GIWA_HOST_DEVICE packed_rows rows_of(const Params& p, const run_item& item, const fast_divisor& group, int tile_rows) {
  const cached_sequence& s = item.sequence;
  const int first = item.row_tile * tile_rows, all = s.queries * p.heads_per_kv;
  return {s.batch,   item.head * p.heads_per_kv,
          first,     all - first < tile_rows ? all - first : tile_rows,
          s.queries, s.keys,
          s.offset,  group};
}

/// What the host knows of the work of a launch, for the shape of its runs.
struct run_work {
  int64 sequences, kv_heads;
  int64 units;        // tiles of rows of all sequences, of one head of keys, at most
  int64 unit_leaves;  // of one unit, at most
  int64 rows;         // of a tile that are in use, at most
  int64 columns;      // of the output, padded
  bool exact;         // units and unit_leaves are those of every sequence
};

/// Floats of a state in the workspace: the output of each row, then m and l of each row. A multiple of 16 bytes.
GIWA_HOST_DEVICE constexpr int64 state_floats(int64 rows, int64 columns) {
  return rows * columns + round_up(2 * rows, 4);
}

/// Slots of a run: the states of the unit that began before it, and those of the unit that it begins.
GIWA_HOST_DEVICE constexpr int64 state_slots(const run_shape& s) { return s.states + fold_levels::count; }

/// Bytes of the workspace of a launch.
GIWA_HOST_DEVICE constexpr int64 workspace_bytes_of(const run_shape& s, int64 columns) {
  if (s.states == 0) return 0;
  const int64 floats = saturated_product(state_slots(s), state_floats(s.rows, columns));
  return saturated_product(saturated_product(floats, int64{sizeof(float)}), int64{s.runs} * s.columns);
}

/// Shares the work among `blocks` blocks, with at most `available` bytes of workspace. Heads are columns, because
/// neighbouring heads of a key are neighbours in memory, unless more than a tenth of the blocks would have no work.
GIWA_HOST_DEVICE constexpr run_shape shape_of_runs(const run_work& w, int64 blocks, int64 available) {
  const bool by_columns = w.kv_heads <= blocks && blocks % w.kv_heads * 10 <= blocks;
  const int64 columns = by_columns ? w.kv_heads : 1, in_column = by_columns ? 1 : w.kv_heads;
  const int64 units = saturated_product(w.units, in_column), leaves = saturated_product(units, w.unit_leaves);
  const int64 most = blocks / columns < leaves ? blocks / columns : leaves;
  const auto shape = [&](int64 runs, int64 states) {
    return run_shape{static_cast<int>(runs),   static_cast<int>(columns), static_cast<int>(in_column),
                     static_cast<int>(states), static_cast<int>(w.rows),  ceil_div(leaves, runs)};
  };
  if (most <= 0) return shape(1, 0);
  for (int64 runs = most; runs > units || (runs == most && runs > 0); runs -= ceil_div(runs, int64{8})) {
    const int64 length = ceil_div(leaves, runs);
    // No unit is divided.
    if (runs == 1 || w.unit_leaves == 1 || (w.exact && length % w.unit_leaves == 0)) return shape(runs, 0);
    // States that a run hands on are those of one unit.
    const int64 own = length < w.unit_leaves ? length : w.unit_leaves;
    const int64 by_tree = run_states::most(own), by_leaf = own + fold_levels::count;
    const int64 states = by_tree < by_leaf ? by_tree : by_leaf;
    if (states > 1 << 20) break;
    const run_shape s = shape(runs, states);
    if (workspace_bytes_of(s, w.columns) <= available) return s;
  }
  return shape(most < units ? most : units, 0);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
