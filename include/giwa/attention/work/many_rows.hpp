// SPDX-License-Identifier: MIT
// Sequences with many rows: which ones these are, how their rows become tiles, and in which splits their keys are summed.
#ifndef GIWA_ATTENTION_WORK_MANY_ROWS_HPP
#define GIWA_ATTENTION_WORK_MANY_ROWS_HPP

#include <giwa/attention/tuning/sm90.hpp>
#include <giwa/attention/work/packed_rows.hpp>
#include <giwa/grid/reduce.hpp>

namespace giwa::inline GIWA_ABI::detail {

// A work tile is a tile of packed rows of one sequence and one head of keys, or two tiles, which the two blocks of a cluster
// compute. Its keys are summed in splits, each from nothing, which are merged in order. The queue of a block has whole work
// tiles, or single splits of them if the launch divides work tiles; then a second launch merges the partials of the splits.
// Either way the same splits are merged in the same order, so the bits are the same.

/// A sequence with more queries than this has many rows. The number of its heads does not matter, because a row's bits must not
/// depend on them. 32 sequences of 9 to 16 queries and 8192 keys, in this kernel and in the one for few rows: 298 and 579 us with
/// 4 heads for each head of keys, 345 and 868 with 8 heads, 297 and 241 with 1; 5 to 8 queries: 299 and 278 with 4, 300
/// and 585 with 8 (H200, 2026-11-23).
inline constexpr int few_queries_of_sequence = 8;

/// How the packed rows of a group of heads fill the 64 rows of a consumer: `queries` queries of `heads` heads each. Row
/// r is query r / heads of these, head r % heads.
struct consumer_tile {
  int heads, queries;
  int group_tiles;  // that the heads of a group take: 1 up to 64 heads
};
GIWA_HOST_DEVICE constexpr consumer_tile consumer_tile_of(int group) {
  int heads = group < 64 ? group : 64;
  while (group % heads != 0) --heads;
  return {heads, 64 / heads, group / heads};
}

/// The tiles of keys in a split. Few queries have few tiles of rows, so their keys are in 8 to 16 splits, which many
/// blocks share. The end of a split costs about as much as 64 keys.
GIWA_HOST_DEVICE constexpr int split_tiles_of(int64 queries, int64 keys, int tile_keys) {
  constexpr int64 longest = 1 << 16;  // as in attention_forward: see sm90_types::has_chunks
  int64 split = queries <= 128 ? 1024 : queries <= 512 ? 4096 : queries <= 4096 ? 8192 : longest;
  while (split < longest && 16 * split <= keys) split *= 2;
  return static_cast<int>(split) / tile_keys;
}

/// The fewest splits of a work tile, on average, for which work tiles are divided. The second launch costs as much as some 1500
/// keys: with two splits of 1024 keys, 64 queries take 50 us instead of 39 (H200, 2026-11-23).
inline constexpr int least_splits = 3;

/// What the host decides of the launches.
struct many_rows_shape {
  int consumers, tile_keys;  // tiles of 64 packed rows of a block; keys of a tile
  consumer_tile tile;
  int kv_heads;
  int blocks;       // or clusters that run at once
  int cluster;      // blocks of a cluster, 1 or 2: each has a tile of rows of a work tile
  int64 slots;      // of the workspace, one for each split of a work tile; 0: no work tile is divided
  int cached_keys;  // of one head, that fit into the L2 cache with their values
};

/// The work of one sequence.
struct many_rows_work {
  int row_tiles, splits, split_tiles;  // row_tiles: work tiles of one head of keys
  /// Work tiles, or their splits if these are divided.
  GIWA_HOST_DEVICE constexpr int64 work_tiles(int kv_heads, bool divides) const {
    return int64{row_tiles} * kv_heads * (divides ? splits : 1);
  }
};
GIWA_HOST_DEVICE constexpr many_rows_work work_of(const many_rows_shape& shape, const cached_sequence& s) {
  if (s.queries <= few_queries_of_sequence) return {0, 0, 1};
  const int tiles = ceil_div(s.queries, shape.tile.queries) * shape.tile.group_tiles;  // at most the packed rows
  const int split_tiles = split_tiles_of(s.queries, s.keys, shape.tile_keys);
  const int splits = ceil_div(ceil_div(s.keys, shape.tile_keys), split_tiles);
  return {ceil_div(tiles, shape.consumers * shape.cluster), splits > 0 ? splits : 1, split_tiles};
}

/// A work tile of a sequence; which split of it, or 0 if it is whole.
struct many_rows_work_tile {
  int head, row_tile, split;  // head: of keys
};

/// Work tile number `i` of a sequence. Of whole work tiles the last rows come first, because under a causal mask they see the
/// most keys, and heads whose keys fit into the L2 cache together are computed together. Pieces of the same keys are neighbours.
GIWA_HOST_DEVICE constexpr many_rows_work_tile work_tile_of(const many_rows_shape& shape, const many_rows_work& w,
                                                            int keys, bool divides, int64 i) {
  // 32 bits, which divide faster: the first copy of a block waits for this.
  const int n = static_cast<int>(i), tiles = w.row_tiles, heads = shape.kv_heads;
  if (divides) {
    const int rest = n / tiles, split = rest / heads;
    return {rest - split * heads, n - rest * tiles, split};
  }
  const int fit = shape.cached_keys / (keys > 0 ? keys : 1), section = fit < 1 ? 1 : fit < heads ? fit : heads;
  const int first = n / (section * tiles) * section, left = heads - first, width = left < section ? left : section;
  const int rest = n - first * tiles, turn = rest / width;
  return {first + rest - turn * width, tiles - 1 - turn, 0};
}
/// The number of a split among those of its sequence, if work tiles are divided.
GIWA_HOST_DEVICE constexpr int64 number_of(const many_rows_shape& shape, const many_rows_work& w, int head,
                                           int row_tile, int split) {
  return (int64{split} * shape.kv_heads + head) * w.row_tiles + row_tile;
}

/// Finds work tiles by their numbers, which must increase, among those of all sequences, 32 of which it looks at together. A
/// warp uses it, all lanes alike. Its code is small, because a block's first copy waits for it, and instructions come from memory.
template <class Params>
class many_rows_walk {
 public:
  GIWA_HOST_DEVICE many_rows_walk(const Params& p, const many_rows_shape& shape) : p_(p), shape_(shape) {}

  struct position {
    cached_sequence sequence;
    many_rows_work work;
    int64 first;  // number of the sequence's first work tile
  };

  /// Whether work tiles are divided: if they have enough splits, and whole ones would leave more than an eighth of the blocks idle.
  /// find() goes by the answer.
  template <class Block>
  GIWA_HOST_DEVICE bool divides(const Block& block) {
    if (shape_.slots == 0) return false;
    int64 tiles = 0, splits = 0;
    do {
      look(block);
      tiles += work_.work_tiles(shape_.kv_heads, false), splits += work_.work_tiles(shape_.kv_heads, true);
    } while (next_ < p_.views.sequence_count());
    tiles = reduce_warp(block, tiles), splits = reduce_warp(block, splits);
    divides_ = splits >= least_splits * tiles && splits <= shape_.slots && 4 * tiles <= 7 * int64{shape_.blocks};
    if (next_ > 32)
      next_ = 0;
    else
      add(block);
    return divides_;
  }
  /// Sets the position of work tile `i`; false after the last.
  template <class Block>
  GIWA_HOST_DEVICE bool find(const Block& block, int64 i, position& found) {
    while (i >= first_ + total_) {
      if (next_ >= p_.views.sequence_count()) return false;
      look(block);
      add(block);
    }
    const uint32 after = block.ballot(i < first_ + inclusive_);
    int owner = 0;
    while ((after >> owner & 1) == 0) ++owner;
    const auto of_owner = [&](auto x) { return block.shuffle(x, owner); };
    const int64 count = work_.work_tiles(shape_.kv_heads, divides_);
    found.first = first_ + of_owner(inclusive_ - count);
    const cached_sequence& s = sequence_;
    found.sequence = {of_owner(s.batch),  of_owner(s.first_query_row), of_owner(s.queries),    of_owner(s.keys),
                      of_owner(s.offset), of_owner(s.q_batch),         of_owner(s.first_entry)};
    found.work = {of_owner(work_.row_tiles), of_owner(work_.splits), of_owner(work_.split_tiles)};
    return true;
  }

 private:
  /// Looks at the next 32 sequences, one for each lane.
  template <class Block>
  GIWA_HOST_DEVICE void look(const Block& block) {
    const int64 b = next_ + block.lane();
    work_ = {0, 0, 1};
    if (b < p_.views.sequence_count()) sequence_ = p_.at(static_cast<int>(b)), work_ = work_of(shape_, sequence_);
    next_ += 32;
  }
  /// Adds up their work tiles.
  template <class Block>
  GIWA_HOST_DEVICE void add(const Block& block) {
    first_ += total_;
    inclusive_ = scan_warp(block, work_.work_tiles(shape_.kv_heads, divides_));
    total_ = block.shuffle(inclusive_, 31);
  }

  const Params& p_;
  const many_rows_shape& shape_;
  bool divides_ = false;
  int64 next_ = 0;               // the first sequence after those of the lanes
  int64 first_ = 0, total_ = 0;  // the work tiles of those
  cached_sequence sequence_{};   // this lane's
  many_rows_work work_{0, 0, 1};
  int64 inclusive_ = 0;  // work tiles up to this lane's
};

/// The queries of a block's tile of rows, some of them past the end: `count` from `first` on.
struct query_range {
  int first, count;
};
GIWA_HOST_DEVICE constexpr query_range queries_of(const many_rows_shape& shape, int block_tile) {
  const consumer_tile& t = shape.tile;
  const int tile = block_tile * shape.consumers;
  const int first = tile / t.group_tiles, last = (tile + shape.consumers - 1) / t.group_tiles;
  return {first * t.queries, (last - first + 1) * t.queries};
}

/// The packed rows of a consumer; none past the end.
template <class Params>
GIWA_HOST_DEVICE packed_rows rows_of(const Params& p, const many_rows_shape& shape, const fast_divisor& heads,
                                     const cached_sequence& s, int kv_head, int block_tile, int consumer) {
  const consumer_tile& t = shape.tile;
  const int number = block_tile * shape.consumers + consumer, of_queries = number / t.group_tiles;
  const int first = of_queries * t.queries, left = s.queries - first;
  const int queries = left < 0 ? 0 : left < t.queries ? left : t.queries, first_query = left < 0 ? s.queries : first;
  const int first_head = kv_head * p.heads_per_kv + (number - of_queries * t.group_tiles) * t.heads;
  return {s.batch, first_head, first_query * t.heads, queries * t.heads, s.queries, s.keys, s.offset, heads};
}

/// Floats of a slot: the partial of a split, then for each consumer whether values that are not finite are missing.
GIWA_HOST_DEVICE constexpr int64 slot_floats(int rows, int64 columns) {
  return partial_slot::floats(rows, columns) + 4;
}

/// A mask for all heads of a group at once.
template <class Mask>
struct group_mask {
  static constexpr bool any_range = mask_traits<Mask>::any_range, any_head = true;
  Mask mask;
  int heads;
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const { return classify_heads(mask, t, heads); }
};

/// The parameters of both launches.
template <class Call>
struct many_rows_params {
  Call call;
  many_rows_shape shape;
  fast_divisor heads;  // of a consumer's tile
  float* workspace;
  int tile_rows, columns;

  /// The slot of the partial of split number `i` of all.
  GIWA_HOST_DEVICE float* slot_of(int64 i) const { return workspace + i * slot_floats(tile_rows, columns); }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
