// SPDX-License-Identifier: MIT
// The partials of the kernel for few rows: what the runs of a divided unit handed on, merged in the tree of leaf_fold.
#ifndef GIWA_ATTENTION_SUMS_FEW_ROWS_PARTIALS_CUH
#define GIWA_ATTENTION_SUMS_FEW_ROWS_PARTIALS_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/sums/merge_partials.cuh>
#include <giwa/attention/work/find_run.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A divided unit, for merge_partials_op. There is a block for each run and column of heads; the blocks of the runs that begin in
/// the unit share its rows. A warp has nothing to overlap its instructions with, so all that does not depend on the partials is
/// done before the runs have ended: which partials there are, the steps of their merge, and where the row goes.
template <class Call>
class few_rows_partials {
  static constexpr int batch = 32;
  /// The next partials of a warp's unit, and of a row of them m, l and some columns.
  struct warp_partials {
    run_partials::position at[batch];
    const float* from[batch];
    alignas(8) float ml[batch][2];
    alignas(16) float o[batch][32 * merged_columns];
  };

 public:
  using params = run_params<Call>;
  static constexpr int max_threads = 128;
  struct shared_storage {
    run_search search;
    warp_partials of_warp[max_threads / 32];
  };

  int rank, blocks;  // of this block among those that share the unit's rows

  template <class Block, class F>
  GIWA_DEVICE static void for_each_tile(const Block& block, const params& p, shared_storage& s, const F& f) {
    arch::launch_dependents();  // the next call, whose blocks wait for this launch
    const int run = static_cast<int>(block.block_index()[1]), column = static_cast<int>(block.block_index()[2]);
    if (!p.early) {
      find_run(block, p.call, p.shape, run, p.leaf_keys, p.tile_rows, s.search);
    } else if (block.warp() == 0) {
      const run_place found = find_run_early(block, p.call, p.shape, run, p.leaf_keys, s.search);
      if (block.lane() == 0) s.search.found = found;
    }
    block.sync();
    few_rows_partials unit(p, s.of_warp[block.warp()], column);
    // This launch begins while the runs are computed. One block that waits keeps it from ending before them.
    if (unit.find(s.search.found)) {
      unit.share_rows(run);
      f(unit);
    } else if (run == 0) {
      arch::wait_for_previous_kernel();
    }
  }

  GIWA_DEVICE const cached_sequence& sequence() const { return item_.sequence; }
  GIWA_DEVICE int rows() const { return rows_.rows; }
  GIWA_DEVICE merged_row begin(int row) {
    row_ = row;
    return {rows_, row};
  }
  template <class Block>
  GIWA_DEVICE merged_sums sum(const Block& block, int first) {
    leaf_fold<merged_sums> fold;
    fold.reset();
    if (!has_all_) list_ = {first_run_};
    do {
      has_all_ = has_all_ || list_.next(block, p_, *this, s_);
      arch::wait_for_previous_kernel();  // the first list is made of the lengths, before the runs have ended
      add_partials(block, first, fold);
    } while (list_.run <= last_run_);
    return fold.finish();
  }
  template <class Block>
  GIWA_DEVICE void end(const Block&, const merged_row&) const {}

 private:
  /// The partials of a unit in order, at most `batch` at a time.
  struct partials_list {
    int64 run;       // the first that is not listed completely
    int listed = 0;  // how many of its partials are
    int count = 0;   // of partials in the list
    // Of the step that begins with partial k, in bit k: whether it has 4, its level, the nodes that it completes. As
    // bits of words that are the same in all lanes they cost no load and no divergent branch.
    uint32 fours = 0, levels[2] = {}, completed[2] = {};

    GIWA_DEVICE merge_step step(int k) const {
      const auto bit = [&](uint32 word) { return static_cast<int>(word >> k & 1); };
      return {1 + 3 * bit(fours), bit(levels[0]) + 2 * bit(levels[1]), bit(completed[0]) + 2 * bit(completed[1])};
    }

    /// Lists the next partials, and returns whether these are all. All lanes of the warp call it, and each has a run.
    template <class Block>
    GIWA_DEVICE bool next(const Block& block, const params& p, const few_rows_partials& unit, warp_partials& s) {
      const bool begins = run == unit.first_run_ && listed == 0;
      const int64 own = run + block.lane();
      const run_partials partials = unit.handed_on(own <= unit.last_run_ ? own : unit.last_run_);
      const int first = block.lane() == 0 ? listed : 0,
                own_count = own <= unit.last_run_ ? partials.count() - first : 0;
      const int end = scan_warp(block, own_count);  // of this run's partials in the list
      for (int i = 0, k = end - own_count; i < own_count && k < batch; ++i, ++k) {
        s.at[k] = partials.at(first + i);
        s.from[k] = p.slot_of(own, unit.column_, own == unit.first_run_, first + i);
      }
      block.sync_warp();
      // The first run that did not fit goes on in the next list.
      const int complete = __popc(block.ballot(end <= batch));
      const int all = block.shuffle(end, 31);
      const int in_next = complete < 32 ? batch - block.shuffle(end - own_count, complete) : 0;
      listed = complete == 0 ? listed + in_next : in_next;
      run += complete;
      count = all < batch ? all : batch;
      const int lane = block.lane();
      const merge_step own_step = lane < count ? merge_step::of(s.at + lane, count - lane) : merge_step{};
      fours = block.ballot(own_step.partials == 4);
      GIWA_UNROLL
      for (int i = 0; i < 2; ++i) {
        levels[i] = block.ballot((own_step.level >> i & 1) != 0);
        completed[i] = block.ballot((own_step.completed >> i & 1) != 0);
      }
      return begins && run > unit.last_run_;
    }
  };

  GIWA_DEVICE few_rows_partials(const params& p, warp_partials& s, int column) : p_(p), s_(s), column_(column) {}

  /// Whether the first leaf of a run is of a divided unit, which this becomes.
  GIWA_DEVICE bool find(const run_place& place) {
    const int64 length = place.length;
    if (place.leaves() <= 0 || place.slots(p_.shape) == 0) return false;
    run_item& item = item_;
    item.sequence = place.sequence, item.leaves = place.leaves_of_sequence;
    const int count = item.leaves.count();
    const int in_sequence = static_cast<int>(quotient_of_leaves(place.before, count));
    run_length_ = length;
    begin_ = place.begin() - (place.before - int64{in_sequence} * count);
    first_run_ = begin_ / length, last_run_ = (begin_ + count - 1) / length;
    if (first_run_ == last_run_) return false;
    item.head = column_, item.row_tile = in_sequence;
    if (p_.shape.heads_in_column != 1) {
      item.head = in_sequence / item.leaves.row_tiles;
      item.row_tile = in_sequence % item.leaves.row_tiles;
    }
    return true;
  }

  GIWA_DEVICE void share_rows(int run) {
    const int64 first = ceil_div(begin_, run_length_);  // the first run that begins in the unit
    rank = static_cast<int>(run - first), blocks = static_cast<int>(last_run_ - first) + 1;
    rows_ = rows_of(p_.call, item_, p_.group, p_.tile_rows);
    list_ = {first_run_};
  }
  /// What a run with leaves of the unit handed on.
  GIWA_DEVICE run_partials handed_on(int64 run) const {
    const int64 from = run * run_length_ - begin_, to = from + run_length_;
    const sequence_leaves& l = item_.leaves;
    return {run == first_run_ ? 0 : l.first + static_cast<int>(from),
            l.first + (to < l.count() ? static_cast<int>(to) : l.count())};
  }

  /// Repeats the merges of listed partials of which no run had both operands, for a row and the columns from `first` on.
  template <class Block, class Fold>
  GIWA_DEVICE void add_partials(const Block& block, int first, Fold& fold) const {
    const partial_slot slot{p_.shape.rows, p_.columns};
    const partials_list& list = list_;
    warp_partials& s = s_;
    const int lane = block.lane(), own = merged_columns * lane;
    if (lane < list.count) arch::copy_async<8>(arch::shared_address(s.ml[lane]), s.from[lane] + slot.sums(row_));
    if (first + own < p_.columns)
#pragma unroll 8
      for (int k = 0; k < list.count; ++k)
        arch::copy_async<16>(arch::shared_address(&s.o[k][own]), s.from[k] + (slot.output(row_) + first + own));
    arch::copy_async_commit();
    arch::copy_async_wait<0>();
    block.sync_warp();
    const auto partial_at = [&](int k) {
      const float4 o = *reinterpret_cast<const float4*>(&s.o[k][own]);
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

  const params& p_;
  warp_partials& s_;
  const int column_;
  run_item item_;
  int64 run_length_, begin_;    // begin: number of the unit's first leaf among all
  int64 first_run_, last_run_;  // those that have leaves of the unit
  packed_rows rows_;
  partials_list list_;
  bool has_all_ = false;  // the list has all partials of the unit
  int row_;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
