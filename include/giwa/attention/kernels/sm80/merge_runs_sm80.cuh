// SPDX-License-Identifier: MIT
// The second launch of the kernel for few rows: it merges what the runs of a divided unit handed on.
#ifndef GIWA_ATTENTION_KERNELS_SM80_MERGE_RUNS_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_MERGE_RUNS_SM80_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/kernels/sm80/few_rows_types_sm80.cuh>
#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/attention/sums/row_sums.cuh>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A block for each run and column of heads. The blocks of the runs that begin in a divided unit share its rows, a warp for
/// each. A warp has nothing to overlap its instructions with, so all that does not depend on the states is done before
/// the runs have ended: which states there are, the steps of their merge, and where the row goes.
template <class Call>
struct merge_runs_op {
  using params = run_params<Call>;
  using output = stdlib::remove_cvref_t<decltype(*stdlib::declval<Call>().views.o.data())>;
  static constexpr int max_threads = 128, min_blocks = 1, warps = max_threads / 32, batch = 32;
  static constexpr int lane_columns = 4, warp_columns = 32 * lane_columns;
  /// The next states of a warp's unit, and of a row of them m, l and some columns.
  struct warp_states {
    run_states::position at[batch];
    const float* from[batch];
    alignas(8) float ml[batch][2];
    alignas(16) float o[batch][warp_columns];
  };
  struct shared_storage {
    run_search search;
    warp_states of_warp[warps];
  };

  using state = row_sums<columns_of_row<lane_columns>>;

  /// The unit to merge, and the runs [first_run, last_run] that have leaves of it.
  struct divided_unit {
    run_item item;
    int64 run_length, begin;  // begin: number of its first leaf among all
    int64 first_run, last_run;
    /// The first run that begins in the unit.
    GIWA_DEVICE int64 first_sharing() const { return ceil_div(begin, run_length); }
    GIWA_DEVICE run_states states(int64 run) const {
      const int64 from = run * run_length - begin, to = from + run_length;
      const sequence_leaves& l = item.leaves;
      return {run == first_run ? 0 : l.first + static_cast<int>(from),
              l.first + (to < l.count() ? static_cast<int>(to) : l.count())};
    }
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    arch::launch_dependents();  // the next call, whose blocks wait for this launch
    const int run = static_cast<int>(block.block_index()[1]), column = static_cast<int>(block.block_index()[2]);
    if (!p.early) {
      find_run(block, p.call, p.shape, run, p.leaf_keys, p.tile_rows, s.search);
    } else if (block.warp() == 0) {
      const run_place found = find_run_early(block, p.call, p.shape, run, p.leaf_keys, s.search);
      if (block.lane() == 0) s.search.found = found;
    }
    block.sync();
    const run_place& place = s.search.found;
    divided_unit unit;
    // This launch begins while the runs are computed. One block that waits keeps it from ending before them.
    if (find_unit(p, place, column, unit))
      merge_rows(block, p, s.of_warp[block.warp()], unit, static_cast<int>(run - unit.first_sharing()), column);
    else if (run == 0)
      arch::wait_for_previous_kernel();
  }

 private:
  /// The states of a unit in order, at most `batch` at a time.
  struct states_list {
    int64 run;       // the first that is not listed completely
    int listed = 0;  // how many of its states are
    int count = 0;   // of states in the list
    // Of the step that begins with state k, in bit k: whether it has 4 states, its level, the nodes that it completes. As
    // bits of words that are the same in all lanes they cost no load and no divergent branch.
    uint32 fours = 0, levels[2] = {}, completed[2] = {};

    GIWA_DEVICE merge_step step(int k) const {
      const auto bit = [&](uint32 word) { return static_cast<int>(word >> k & 1); };
      return {1 + 3 * bit(fours), bit(levels[0]) + 2 * bit(levels[1]), bit(completed[0]) + 2 * bit(completed[1])};
    }

    /// Lists the next states, and returns whether these are all. All lanes of the warp call it, and each has a run.
    template <class Block>
    GIWA_DEVICE bool next(const Block& block, const params& p, const divided_unit& unit, int column, warp_states& s) {
      const bool begins = run == unit.first_run && listed == 0;
      const int64 own = run + block.lane();
      const run_states states = unit.states(own <= unit.last_run ? own : unit.last_run);
      const int first = block.lane() == 0 ? listed : 0, own_count = own <= unit.last_run ? states.count() - first : 0;
      const int end = scan_warp(block, own_count);  // of this run's states in the list
      for (int i = 0, k = end - own_count; i < own_count && k < batch; ++i, ++k) {
        s.at[k] = states.at(first + i);
        s.from[k] = p.state_of(own, column, own == unit.first_run, first + i);
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
      fours = block.ballot(own_step.states == 4);
      GIWA_UNROLL
      for (int i = 0; i < 2; ++i) {
        levels[i] = block.ballot((own_step.level >> i & 1) != 0);
        completed[i] = block.ballot((own_step.completed >> i & 1) != 0);
      }
      return begins && run > unit.last_run;
    }
  };

  /// Whether the first leaf of a run is of a divided unit.
  GIWA_DEVICE static bool find_unit(const params& p, const run_place& place, int column, divided_unit& unit) {
    const int64 length = place.length;
    if (place.leaves() <= 0 || place.states(p.shape) == 0) return false;
    run_item& item = unit.item;
    item.sequence = place.sequence, item.leaves = place.leaves_of_sequence;
    const int count = item.leaves.count();
    const int in_sequence = static_cast<int>(quotient_of_leaves(place.before, count));
    unit.run_length = length;
    unit.begin = place.begin() - (place.before - int64{in_sequence} * count);
    unit.first_run = unit.begin / length, unit.last_run = (unit.begin + count - 1) / length;
    if (unit.first_run == unit.last_run) return false;
    item.head = column, item.row_tile = in_sequence;
    if (p.shape.heads_in_column != 1) {
      item.head = in_sequence / item.leaves.row_tiles;
      item.row_tile = in_sequence % item.leaves.row_tiles;
    }
    return true;
  }

  /// Merges this warp's rows of a unit. `share` is the block's rank among those that share them.
  template <class Block>
  GIWA_DEVICE static void merge_rows(const Block& block, const params& p, warp_states& s, const divided_unit& unit,
                                     int share, int column) {
    const packed_rows rows = rows_of(p.call, unit.item, p.group, p.tile_rows);
    const cached_sequence& sequence = unit.item.sequence;
    const int shares = static_cast<int>(unit.last_run - unit.first_sharing()) + 1;
    states_list list{unit.first_run};
    bool has_all = false;  // the list has all states of the unit
    for (int row = share + shares * block.warp(); row < rows.rows; row += shares * warps) {
      const cached_row_end<output> to(p.call, sequence, rows.head(row), rows.query(row));
      float lse = 0;
      for (int first = 0; first < p.columns; first += warp_columns) {
        leaf_fold<state> fold;
        fold.reset();
        if (!has_all) list = {unit.first_run};
        do {
          has_all = has_all || list.next(block, p, unit, column, s);
          arch::wait_for_previous_kernel();  // the first list is made of the lengths, before the runs have ended
          add_states(block, p, s, list, row, first, fold);
        } while (list.run <= unit.last_run);
        const state all = fold.finish();
        const finished_softmax<float> end = to.finish(all.m[0], all.l[0]);
        to.store(first + lane_columns * block.lane(), all.o.value, end);
        lse = end.lse;
      }
      block.sync_warp();  // lse may be the prior's, which all lanes have read
      if (block.lane() == 0 && to.lse != nullptr) *to.lse = lse;
    }
  }

  /// Repeats the merges of listed states of which no run had both operands, for a row and the columns from `first` on.
  template <class Block, class Fold>
  GIWA_DEVICE static void add_states(const Block& block, const params& p, warp_states& s, const states_list& list,
                                     int row, int first, Fold& fold) {
    const int lane = block.lane(), own = lane_columns * lane;
    if (lane < list.count)
      arch::copy_async<8>(arch::shared_address(s.ml[lane]), s.from[lane] + int64{p.shape.rows} * p.columns + 2 * row);
    if (first + own < p.columns)
#pragma unroll 8
      for (int k = 0; k < list.count; ++k)
        arch::copy_async<16>(arch::shared_address(&s.o[k][own]), s.from[k] + row * p.columns + first + own);
    arch::copy_async_commit();
    arch::copy_async_wait<0>();
    block.sync_warp();
    const auto state_at = [&](int k) {
      const float4 o = *reinterpret_cast<const float4*>(&s.o[k][own]);
      return state{{s.ml[k][0]}, {s.ml[k][1]}, {{o.x, o.y, o.z, o.w}}};
    };
#pragma unroll 1
    for (int k = 0; k < list.count;) {
      const merge_step step = list.step(k);
      state x = state_at(k);
      if (step.states == 4) {
        const state more[3] = {state_at(k + 1), state_at(k + 2), state_at(k + 3)};
        GIWA_UNROLL
        for (int i = 0; i < 3; ++i) x.merge(more[i]);  // their factors do not wait for each other
      }
      fold.add(step, x);
      k += step.states;
    }
    block.sync_warp();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
