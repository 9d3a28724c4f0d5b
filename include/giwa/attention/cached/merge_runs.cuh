// SPDX-License-Identifier: MIT
// The second launch of the kernel for few rows: it merges what the runs of a divided unit handed on.
#ifndef GIWA_ATTENTION_CACHED_MERGE_RUNS_CUH
#define GIWA_ATTENTION_CACHED_MERGE_RUNS_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/cached/few_rows_types.cuh>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A block for each run and column of heads: it merges the unit that ends in the run and began before it, if there is one.
/// Small code matters more than anything else here: its instructions come from memory, after the keys of a whole cache.
template <class Call>
struct merge_runs_op {
  using params = run_params<Call>;
  static constexpr int max_threads = 128, min_blocks = 1, warps = max_threads / 32;
  static constexpr int lane_columns = 4, warp_columns = 32 * lane_columns, batch = 32;
  struct shared_storage {
    run_search search;
    struct {
      alignas(16) float o[batch][warp_columns], ml[batch][2];
      run_states::position at[batch];
      const float* from[batch];
    } of_warp[warps];
  };

  /// A row's m, l and four columns of O.
  struct state {
    float m, l, o[lane_columns];
    GIWA_DEVICE void reset() {
      m = -infinity_of<float>, l = 0;
      GIWA_UNROLL
      for (int i = 0; i < lane_columns; ++i) o[i] = 0;
    }
    GIWA_DEVICE void merge(const state& later) {
      float own, other;
      m = merge_maxima(m, later.m, own, other);
      l = fused_multiply_add(l, own, later.l * other);
      GIWA_UNROLL
      for (int i = 0; i < lane_columns; ++i) o[i] = fused_multiply_add(o[i], own, later.o[i] * other);
    }
  };

  /// The unit to merge, and the runs [first_run, last_run] that have leaves of it.
  struct divided_unit {
    run_item item;
    int64 run_length, begin;  // begin: number of its first leaf among all
    int64 first_run, last_run;
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
    const int64 run = block.block_rank() / p.shape.columns;
    const int column = static_cast<int>(block.block_rank() % p.shape.columns);
    find_run(block, p.call, p.shape, run, p.leaf_keys, p.tile_rows, s.search);
    divided_unit unit;
    const bool found = find_unit(p, s.search, run, column, unit);
    // This launch begins while the runs are computed. One block that waits keeps it from ending before them.
    if (!found && block.block_rank() != 0) return;
    arch::wait_for_previous_kernel();
    if (!found) return;
    const packed_rows rows = rows_of(p.call, unit.item, p.group, p.tile_rows);
    for (int row = block.warp(); row < rows.rows; row += warps) merge_row(block, p, s, unit, rows, row, column);
  }

 private:
  /// Whether a unit that began in an earlier run ends in this one.
  GIWA_DEVICE static bool find_unit(const params& p, const run_search& search, int64 run, int column,
                                    divided_unit& unit) {
    const int64 length = search.run_length(p.shape), begin = run * length;
    if (begin >= search.total || search.checked(p.shape).states == 0) return false;
    run_item& item = unit.item;
    item.sequence = p.call.at(search.found.sequence);
    item.leaves = leaves_of(p.call, item.sequence, p.leaf_keys, p.tile_rows);
    const int64 in_sequence = search.found.before / item.leaves.count();
    unit.run_length = length;
    unit.begin = begin - (search.found.before - in_sequence * item.leaves.count());
    unit.first_run = unit.begin / length, unit.last_run = run;
    const int64 end = unit.begin + item.leaves.count();
    if (unit.begin == begin || end > (search.total < begin + length ? search.total : begin + length)) return false;
    item.head = column, item.row_tile = static_cast<int>(in_sequence);
    if (p.shape.heads_in_column != 1) {
      item.head = static_cast<int>(in_sequence) / item.leaves.row_tiles;
      item.row_tile = static_cast<int>(in_sequence) % item.leaves.row_tiles;
    }
    return true;
  }

  template <class Block>
  GIWA_DEVICE static void merge_row(const Block& block, const params& p, shared_storage& s, const divided_unit& unit,
                                    const packed_rows& rows, int row, int column) {
    const cached_sequence& sequence = unit.item.sequence;
    const int query = rows.query(row), head = rows.head(row);
    float lse = 0;
    for (int first = 0; first < p.columns; first += warp_columns) {
      const int at = first + block.lane() * lane_columns;
      const state all = merge_states(block, p, s, unit, row, at, column);
      const finished_softmax<float> end = finish_row(p.call, sequence, head, query, all.m, all.l);
      GIWA_UNROLL
      for (int i = 0; i < lane_columns; ++i) store_element(p.call, sequence, head, query, at + i, all.o[i], end);
      lse = end.lse;
    }
    block.sync_warp();  // lse may be the prior's, which all lanes have read
    if (block.lane() == 0 && p.call.lse.data() != nullptr)
      p.call.lse(sequence.q_batch, head, sequence.first_query_row + query) = lse;
  }

  /// Repeats the merges of which no run had both operands.
  template <class Block>
  GIWA_DEVICE static state merge_states(const Block& block, const params& p, shared_storage& s,
                                        const divided_unit& unit, int row, int at, int column) {
    auto& buffer = s.of_warp[block.warp()];
    const int lane_at = block.lane() * lane_columns;
    const int64 of_ml = int64{p.shape.rows} * p.columns + 2 * row;
    leaf_fold<state> fold;
    fold.reset();
    int64 run = unit.first_run;  // the first that is not listed completely, and how many of its states are
    int listed = 0;
    while (run <= unit.last_run) {
      const int count = list_states(block, p, unit, column, buffer, run, listed);
#pragma unroll 1
      for (int k = 0; k < count; ++k) {
        const float* const from = buffer.from[k];
        if (at < p.columns)
          arch::copy_async<16>(arch::shared_address(&buffer.o[k][lane_at]), from + row * p.columns + at);
      }
      if (block.lane() < count)
        arch::copy_async<8>(arch::shared_address(buffer.ml[block.lane()]), buffer.from[block.lane()] + of_ml);
      arch::copy_async_commit();
      arch::copy_async_wait<0>();
      block.sync_warp();
#pragma unroll 1
      for (int k = 0; k < count; ++k) {
        const float4 o = *reinterpret_cast<const float4*>(&buffer.o[k][lane_at]);
        fold.replay(buffer.at[k], {buffer.ml[k][0], buffer.ml[k][1], {o.x, o.y, o.z, o.w}});
      }
      block.sync_warp();
    }
    return fold.finish();
  }

  /// Lists the next states in order, at most `batch`, and returns their number. Each lane has a run.
  template <class Block, class Buffer>
  GIWA_DEVICE static int list_states(const Block& block, const params& p, const divided_unit& unit, int column,
                                     Buffer& buffer, int64& run, int& listed) {
    const int64 own = run + block.lane();
    const run_states states = unit.states(own <= unit.last_run ? own : unit.last_run);
    const int first = block.lane() == 0 ? listed : 0, count = own <= unit.last_run ? states.count() - first : 0;
    int end = count;  // of this run's states in the list
    for (int distance = 1; distance < 32; distance *= 2) {
      const int below = block.shuffle_up(end, distance);
      if (block.lane() >= distance) end += below;
    }
    for (int i = 0, k = end - count; i < count && k < batch; ++i, ++k) {
      buffer.at[k] = states.at(first + i);
      buffer.from[k] = p.state_of(own, column, own == unit.first_run, first + i);
    }
    block.sync_warp();
    // The first run that did not fit goes on in the next list.
    const int complete = __popc(block.ballot(end <= batch));
    const int all = block.shuffle(end, 31);
    const int in_next = complete < 32 ? batch - block.shuffle(end - count, complete) : 0;
    listed = complete == 0 ? listed + in_next : in_next;
    run += complete;
    return all < batch ? all : batch;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
