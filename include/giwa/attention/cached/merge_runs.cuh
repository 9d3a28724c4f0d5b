// SPDX-License-Identifier: MIT
// The second launch of the kernel for few rows: it merges what the runs of a divided unit handed on.
#ifndef GIWA_ATTENTION_CACHED_MERGE_RUNS_CUH
#define GIWA_ATTENTION_CACHED_MERGE_RUNS_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/cached/few_rows_types.cuh>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A block for each run and column of heads: it merges the unit that ends in the run and began before it, if there is one.
template <class Types>
struct merge_runs_op {
  using params = typename Types::params;
  struct shared_storage {
    run_search search;
  };
  static constexpr int max_threads = 256, min_blocks = 1, warps = max_threads / 32;
  static constexpr int lane_columns = 4, warp_columns = 32 * lane_columns;

  /// A row's m, l and four columns of O.
  struct state {
    float m, l, o[lane_columns];
    GIWA_DEVICE void reset() {
      m = -infinity_of<float>, l = 0;
      for (float& x : o) x = 0;
    }
    GIWA_DEVICE void merge(const state& later) {
      float own, other;
      m = merge_maxima(m, later.m, own, other);
      l = fused_multiply_add(l, own, later.l * other);
      GIWA_UNROLL
      for (int i = 0; i < lane_columns; ++i) o[i] = fused_multiply_add(o[i], own, later.o[i] * other);
    }
  };

  /// The unit to merge, and the runs that have leaves of it.
  struct divided_unit {
    int64 first_run, run_length, begin;  // begin: number of its first leaf among all
    sequence_leaves leaves;
    GIWA_DEVICE run_states states(int64 run) const {
      const int64 from = run * run_length - begin, to = from + run_length;
      return {run == first_run ? 0 : leaves.first + static_cast<int>(from),
              leaves.first + (to < leaves.count() ? static_cast<int>(to) : leaves.count())};
    }
  };
  /// Walks the states of a unit in order.
  struct state_walk {
    const divided_unit& unit;
    int64 run;
    run_states of_run;
    int i = 0, count;
    GIWA_DEVICE explicit state_walk(const divided_unit& u)
        : unit(u), run(u.first_run), of_run(u.states(run)), count(of_run.count()) {}
    GIWA_DEVICE void next() {
      if (++i == count) of_run = unit.states(++run), count = of_run.count(), i = 0;
    }
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    const int64 run = block.block_rank() / p.shape.columns;
    const int column = static_cast<int>(block.block_rank() % p.shape.columns);
    find_run(block, p.call, p.shape, run, Types::leaf_keys, Types::rows, s.search);
    const int64 length = s.search.run_length(p.shape), total = s.search.total, begin = run * length;
    if (begin >= total) return;
    const cached_sequence sequence = p.call.at(s.search.found.sequence);
    divided_unit unit{0, length, 0, leaves_of(p.call, sequence, Types::leaf_keys, Types::rows)};
    const int64 in_sequence = s.search.found.before / unit.leaves.count();
    unit.begin = begin - (s.search.found.before - in_sequence * unit.leaves.count());
    const int64 end = unit.begin + unit.leaves.count();
    if (unit.begin == begin || end > (total < begin + length ? total : begin + length)) return;
    unit.first_run = unit.begin / length;
    run_item item{sequence, unit.leaves, column, static_cast<int>(in_sequence), 0, 0};
    if (p.shape.heads_in_column != 1) {
      item.head = static_cast<int>(in_sequence) / unit.leaves.row_tiles;
      item.row_tile = static_cast<int>(in_sequence) % unit.leaves.row_tiles;
    }
    arch::wait_for_previous_kernel();
    const packed_rows rows = rows_of(p.call, item, p.group, Types::rows);
    for (int row = block.warp(); row < rows.rows; row += warps) merge_row(block, p, unit, rows, item, row, run, column);
  }

 private:
  template <class Block>
  GIWA_DEVICE static void merge_row(const Block& block, const params& p, const divided_unit& unit,
                                    const packed_rows& rows, const run_item& item, int row, int64 last_run, int column) {
    const int query = rows.query(row), head = rows.head(row);
    float lse = 0;
    for (int first = 0; first < Types::columns; first += warp_columns) {
      const int at = first + block.lane() * lane_columns;
      const state all = merge_states(p, unit, row, at < Types::columns ? at : 0, last_run, column);
      const finished_softmax<float> end = finish_row(p.call, item.sequence, head, query, all.m, all.l);
      GIWA_UNROLL
      for (int i = 0; i < lane_columns; ++i)
        store_element(p.call, item.sequence, head, query, at + i, all.o[i], end);
      lse = end.lse;
    }
    block.sync_warp();  // lse may be the prior's, which all lanes have read
    if (block.lane() == 0 && p.call.lse.data() != nullptr)
      p.call.lse(item.sequence.q_batch, head, item.sequence.first_query_row + query) = lse;
  }

  /// Repeats the merges that no run had both operands of, with `ahead` states in flight.
  GIWA_DEVICE static state merge_states(const params& p, const divided_unit& unit, int row, int first_column,
                                        int64 last_run, int column) {
    constexpr int ahead = 8;
    leaf_fold<state> fold;
    fold.reset();
    state_walk loaded(unit), merged(unit);
    while (merged.run <= last_run) {
      state batch[ahead];
      int count = 0;
      GIWA_UNROLL
      for (int k = 0; k < ahead; ++k)
        if (loaded.run <= last_run) {
          const float* const from = Types::state_of(p, loaded.run, column, loaded.run == unit.first_run, loaded.i);
          const float2 ml = *reinterpret_cast<const float2*>(from + int64{p.shape.rows} * Types::columns + 2 * row);
          const float4 o = *reinterpret_cast<const float4*>(from + row * Types::columns + first_column);
          batch[k] = {ml.x, ml.y, {o.x, o.y, o.z, o.w}};
          loaded.next();
          ++count;
        }
      GIWA_UNROLL
      for (int k = 0; k < ahead; ++k)
        if (k < count) {
          fold.replay(merged.of_run, merged.i, batch[k]);
          merged.next();
        }
    }
    return fold.finish();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
