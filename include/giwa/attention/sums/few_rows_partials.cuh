// SPDX-License-Identifier: MIT
// Partials of few rows, in a tree.
#ifndef GIWA_ATTENTION_SUMS_FEW_ROWS_PARTIALS_CUH
#define GIWA_ATTENTION_SUMS_FEW_ROWS_PARTIALS_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/sums/divided_tile.cuh>
#include <giwa/attention/sums/merge_partials.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A divided work tile, for merge_partials_op. There is a block for each split and column of heads; the blocks of the splits that
/// begin in the work tile share its rows. A warp has nothing to overlap its instructions with, so all that does not depend on the
/// partials is done before the splits are computed: which partials there are, the steps of their merge, and where the row goes.
/// ByBlocks: if the largest nodes of the tree are whole splits, each warp of a block sums some of them, of the same row. One warp
/// took 4 us longer for 64 partials (15.2 us instead of 11.0 for 1 x 8(1) x 32768), but where they are few the code for both takes
/// 0.2 us more (H200, 2026-11-29).
template <class Call, bool ByBlocks = false, int EarlySequences = 32>
class few_rows_partials : public divided_tile<split_params<Call>> {
  using base = divided_tile<split_params<Call>>;
  static constexpr int batch = EarlySequences > 32 ? 16 : 32;

 protected:
  using base::begin_, base::column_, base::first_split_, base::last_split_, base::p_, base::split_length_, base::work_;

  /// The next partials of a warp's work tile, and of a row of them m, l and some columns.
  struct warp_partials {
    split_partials::position position[batch];
    const float* slot[batch];
    alignas(8) float ml[batch][2];
    alignas(16) float o[batch][32 * merged_columns];
  };

 public:
  using params = split_params<Call>;
  using base::blocks, base::rank;
  static constexpr int max_threads = 128;
  static constexpr bool shares_columns = false, rows_by_blocks = ByBlocks;
  struct shared_storage {
    split_search search;
    warp_partials next[max_threads / 32];
  };

  template <class Block, class F>
  GIWA_DEVICE static void for_each_tile(const Block& block, const params& p, shared_storage& s, const F& f) {
    arch::launch_dependents();  // the next call, whose blocks wait for this launch
    const int split = static_cast<int>(block.block_index()[1]), column = static_cast<int>(block.block_index()[2]);
    find_split_of_merge<EarlySequences>(block, p, split, s.search, s.next);
    few_rows_partials tile(p, s.next[block.warp()], column);
    // This launch begins while the splits are computed. One block that waits keeps it from ending before them.
    if (tile.find(s.search.found)) {
      tile.share_rows(split);
      f(tile);
    } else if (split == 0) {
      arch::wait_for_previous_kernel();
    }
  }

  GIWA_DEVICE int rows() const { return rows_.rows; }
  GIWA_DEVICE merged_row begin(int row) {
    row_ = row;
    return {rows_, row};
  }
  template <class Block>
  GIWA_DEVICE merged_sums sum(const Block& block, int first) {
    if constexpr (ByBlocks) {
      return sum_of_block(block, first);
    } else {
      if (!has_all_) list_ = {first_split_};
      return sum_of_splits(block, last_split_, first);
    }
  }
  /// Whether this warp has the row's sum, with rows_by_blocks.
  template <class Block>
  GIWA_DEVICE bool stores(const Block& block) const {
    return !by_blocks_ || block.warp() == 0;
  }
  GIWA_DEVICE bool by_blocks() const { return by_blocks_; }
  template <class Block>
  GIWA_DEVICE void end(const Block&, const merged_row&) const {}

 protected:
  /// The partials of a work tile in order, at most `batch` at a time.
  struct partials_list {
    int64 split;     // the first that is not listed completely
    int listed = 0;  // how many of its partials are
    int count = 0;   // of partials in the list
    // Of the step that begins with partial k, in bit k: whether it has 4, its level, the nodes that it completes. As
    // bits of words that are the same in all lanes they cost no load and no divergent branch.
    uint32 fours = 0, levels[2] = {}, completed[2] = {};

    GIWA_DEVICE merge_step step(int k) const {
      const auto bit = [&](uint32 word) { return static_cast<int>(word >> k & 1); };
      return {1 + 3 * bit(fours), bit(levels[0]) + 2 * bit(levels[1]), bit(completed[0]) + 2 * bit(completed[1])};
    }

    /// Lists the next partials of the splits up to `last`, and returns whether these are all. All lanes of the warp call it, and
    /// each has a split.
    template <class Block>
    GIWA_DEVICE bool next(const Block& block, const params& p, const few_rows_partials& tile, int64 last,
                          warp_partials& s) {
      const bool begins = split == tile.first_split_ && listed == 0;
      const int64 lane_split = split + block.lane();
      const split_partials partials = tile.handed_on(lane_split <= last ? lane_split : last);
      const int first = block.lane() == 0 ? listed : 0, lane_count = lane_split <= last ? partials.count() - first : 0;
      const int end = scan_warp(block, lane_count);  // of this split's partials in the list
      for (int i = 0, k = end - lane_count; i < lane_count && k < batch; ++i, ++k) {
        s.position[k] = partials.position_of(first + i);
        s.slot[k] = p.slot_of(lane_split, tile.column_, lane_split == tile.first_split_, first + i);
      }
      block.sync_warp();
      // The first split that did not fit goes on in the next list.
      const int complete = __popc(block.ballot(end <= batch));
      const int all = block.shuffle(end, 31);
      const int in_next = complete < 32 ? batch - block.shuffle(end - lane_count, complete) : 0;
      listed = complete == 0 ? listed + in_next : in_next;
      split += complete;
      count = all < batch ? all : batch;
      const int lane = block.lane();
      const merge_step step = lane < count ? merge_step::first_of(s.position + lane, count - lane) : merge_step{};
      fours = block.ballot(step.partials == 4);
      GIWA_UNROLL
      for (int i = 0; i < 2; ++i) {
        levels[i] = block.ballot((step.level >> i & 1) != 0);
        completed[i] = block.ballot((step.completed >> i & 1) != 0);
      }
      return begins && split > last;
    }
  };

  GIWA_DEVICE few_rows_partials(const params& p, warp_partials& s, int column) : base(p, column), s_(s) {}

  GIWA_DEVICE void share_rows(int split) {
    base::share_rows(split);
    end_of_find();
    if constexpr (ByBlocks) {
      const bool whole = begin_ == first_split_ * split_length_ && split_length_ <= largest_node &&
                         (split_length_ & (split_length_ - 1)) == 0 && work_.leaves.first == 0;
      by_blocks_ = whole && work_.leaves.count() > largest_node && rows_.rows <= blocks;
    }
  }

  GIWA_DEVICE void end_of_find() {
    rows_ = rows_of(p_, work_);
    list_ = {first_split_};
  }

  static constexpr int largest_node = fold_levels::largest_span(), warps = max_threads / 32;
  /// The sum of what is listed, and of the splits after that up to `last`.
  template <class Block>
  GIWA_DEVICE merged_sums sum_of_splits(const Block& block, int64 last, int first) {
    leaf_fold<merged_sums> fold;
    fold.reset();
    do {
      has_all_ = has_all_ || list_.next(block, p_, *this, last, s_);
      arch::wait_for_previous_kernel();  // the first list is made of the lengths, before the splits are computed
      add_partials(block, first, fold);
    } while (list_.split <= last);
    return fold.finish();
  }
  /// The same of all splits; if by_blocks_, each warp sums some of the largest nodes, and all merge these in order.
  template <class Block>
  GIWA_DEVICE merged_sums sum_of_block(const Block& block, int first) {
    const int nodes = ceil_div(work_.leaves.count(), largest_node), column = merged_columns * block.lane();
    const warp_partials* const sums = &s_ - block.warp();
    merged_sums all;
    all.reset();
    for (int node = 0;; node += warps) {
      int64 last = last_split_;
      if (by_blocks_) {
        const int splits = largest_node / static_cast<int>(split_length_);
        list_ = {first_split_ + (node + block.warp()) * splits}, has_all_ = false;
        if (list_.split + splits <= last) last = list_.split + splits - 1;
      } else if (!has_all_) {
        list_ = {first_split_};
      }
      if (list_.split <= last || has_all_) {
        const merged_sums x = sum_of_splits(block, last, first);
        if (!by_blocks_) return x;
        if (block.lane() == 0) s_.ml[0][0] = x.m[0], s_.ml[0][1] = x.l[0];
        *reinterpret_cast<float4*>(&s_.o[0][column]) = {x.o.value[0], x.o.value[1], x.o.value[2], x.o.value[3]};
      }
      block.sync();
      for (int w = 0; w < warps && node + w < nodes; ++w) {
        const float4 o = *reinterpret_cast<const float4*>(&sums[w].o[0][column]);
        all.merge(merged_sums{{sums[w].ml[0][0]}, {sums[w].ml[0][1]}, {{o.x, o.y, o.z, o.w}}});
      }
      block.sync();
      if (node + warps >= nodes) return all;
    }
  }
  /// What a split with leaves of the work tile handed on.
  GIWA_DEVICE split_partials handed_on(int64 split) const {
    const int64 from = split * split_length_ - begin_, to = from + split_length_;
    const sequence_leaves& l = work_.leaves;
    return {split == first_split_ ? 0 : l.first + static_cast<int>(from),
            l.first + (to < l.count() ? static_cast<int>(to) : l.count())};
  }

  /// Repeats the merges of listed partials of which no split had both operands, for a row and the columns from `first` on.
  template <class Block, class Fold>
  GIWA_DEVICE void add_partials(const Block& block, int first, Fold& fold) const {
    const partial_slot slot{p_.shape.rows, p_.columns};
    const partials_list& list = list_;
    warp_partials& s = s_;
    const int lane = block.lane(), column = merged_columns * lane;
    if (lane < list.count) arch::copy_async<8>(arch::shared_address(s.ml[lane]), s.slot[lane] + slot.sums(row_));
    if (first + column < p_.columns)
#pragma unroll 8
      for (int k = 0; k < list.count; ++k)
        arch::copy_async<16>(arch::shared_address(&s.o[k][column]), s.slot[k] + (slot.output(row_) + first + column));
    arch::copy_async_commit();
    arch::copy_async_wait<0>();
    block.sync_warp();
    const auto partial_at = [&](int k) {
      const float4 o = *reinterpret_cast<const float4*>(&s.o[k][column]);
      return merged_sums{{s.ml[k][0]}, {s.ml[k][1]}, {{o.x, o.y, o.z, o.w}}};
    };
#pragma unroll 1
    for (int k = 0; k < list.count;) {
      const merge_step step = list.step(k);
      merged_sums x = partial_at(k);
      if (step.partials == 4) {
        const merged_sums more[3] = {partial_at(k + 1), partial_at(k + 2), partial_at(k + 3)};
        GIWA_UNROLL
        for (int i = 0; i < 3; ++i) x.merge(more[i]);  // their factors do not wait for each other
      }
      fold.add(step, x);
      k += step.partials;
    }
    block.sync_warp();
  }

  warp_partials& s_;
  packed_rows rows_;
  partials_list list_;
  bool has_all_ = false;    // the list has all partials of the work tile
  bool by_blocks_ = false;  // the warps of a block sum one row
  int row_;
};

/// The same for O of many columns, which blocks share.
template <class Call>
struct latent_partials : few_rows_partials<Call, false, most_early_sequences> {
  static constexpr bool shares_columns = true;
  static constexpr int columns = 32 * merged_columns;  // of a block
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
