// SPDX-License-Identifier: MIT
// Partials of many rows, merged one after the other.
#ifndef GIWA_ATTENTION_SUMS_MANY_ROWS_PARTIALS_CUH
#define GIWA_ATTENTION_SUMS_MANY_ROWS_PARTIALS_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/sums/merge_partials.cuh>
#include <giwa/attention/work/many_rows.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A divided work tile, for merge_partials_op. The blocks of all its splits share its rows.
template <class Call, class Mask, class Score>
class many_rows_partials {
 public:
  struct params : many_rows_params<Call> {
    group_mask<Mask> mask;
  };
  using shared_storage = no_shared_storage;
  static constexpr int max_threads = 256;
  static constexpr bool shares_columns = false;

  int rank, blocks;  // of this block among those that share the work tile's rows

  template <class Block, class F>
  GIWA_DEVICE static void for_each_tile(const Block& block, const params& p, shared_storage&, const F& f) {
    many_rows_walk<Call> tiles(p.call, p.shape);
    const bool divides = tiles.divides(block);
    arch::wait_for_previous_kernel();
    if (!divides) return;
    many_rows_partials tile(p);
    auto& found = tile.position_;
    for (int64 i = block.block_rank(); tiles.find(block, i, found); i += block.block_count()) {
      if (found.work.splits == 1) continue;
      const many_rows_work_tile work = work_tile_of(p.shape, found.work, found.sequence.keys, true, i - found.first);
      tile.head_ = work.head, tile.row_tile_ = work.row_tile;
      tile.rank = work.split, tile.blocks = found.work.splits;
      f(tile);
    }
  }

  GIWA_DEVICE const cached_sequence& sequence() const { return position_.sequence; }
  GIWA_DEVICE int rows() const { return p_.tile_rows; }
  GIWA_DEVICE merged_row begin(int row) {
    row_ = row, has_nonfinite_ = false;
    return {rows_of(p_.call, p_.shape, p_.heads, position_.sequence, head_, row_tile_, row / 64), row % 64};
  }
  template <class Block>
  GIWA_DEVICE merged_sums sum(const Block& block, int first) {
    merged_sums all;
    all.reset();
    for (int split = 0; split < position_.work.splits; split += batch)
      merge_splits(first + merged_columns * block.lane(), split, all);
    return all;
  }
  /// Adds the NaN and infinity that were removed from V tiles.
  template <class Block>
  GIWA_DEVICE void end(const Block& block, const merged_row& row) const {
    if (!has_nonfinite_) return;
    const auto& call = p_.call;
    const cached_sequence& s = position_.sequence;
    const head_of_keys h{s.batch, head_ * call.heads_per_kv, s.offset, s.queries, s.keys};
    const score_steps<Mask, Score> steps{call.mask, call.score, call.scale};
    const query_range queries = queries_of(p_.shape, row_tile_);
    const key_tiles<group_mask<Mask>> list(p_.mask, h, queries.first, queries.count, p_.shape.tile_keys);
    add_nonfinite(block, call, steps, s, head_, row.packed, list, row.row, row.row + 1);
  }

 private:
  static constexpr int batch = 8;
  struct head_of_keys {
    int batch, head, offset, all_queries, all_keys;
    GIWA_DEVICE int queries() const { return all_queries; }
    GIWA_DEVICE int keys() const { return all_keys; }
  };

  GIWA_DEVICE explicit many_rows_partials(const params& p) : p_(p) {}

  /// Merges up to `batch` splits of the row and some columns, whose loads do not wait for each other.
  GIWA_DEVICE void merge_splits(int column, int split, merged_sums& all) {
    const int left = position_.work.splits - split;
    const partial_slot slot{p_.tile_rows, p_.columns};
    merged_sums next[batch];
    GIWA_UNROLL
    for (int i = 0; i < batch; ++i) {
      next[i].reset();
      if (i >= left) continue;
      const float* const from =
          p_.slot_of(position_.first + number_of(p_.shape, position_.work, head_, row_tile_, split + i));
      const float2 ml = *reinterpret_cast<const float2*>(from + slot.sums(row_));
      next[i].m[0] = ml.x, next[i].l[0] = ml.y;
      has_nonfinite_ = has_nonfinite_ || from[slot.sums(p_.tile_rows) + row_ / 64] != 0;
      if (column >= p_.columns) continue;
      const float4 o = *reinterpret_cast<const float4*>(from + slot.output(row_) + column);
      next[i].o = {{o.x, o.y, o.z, o.w}};
    }
    GIWA_UNROLL
    for (int i = 0; i < batch; ++i) all.merge(next[i]);
  }

  const params& p_;
  typename many_rows_walk<Call>::position position_;
  int head_, row_tile_;
  int row_;
  bool has_nonfinite_;  // a split of the row lacks values that are not finite
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
