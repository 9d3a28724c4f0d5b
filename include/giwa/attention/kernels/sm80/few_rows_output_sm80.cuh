// SPDX-License-Identifier: MIT
// O = P V of few rows, the fold, and ends of rows.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_OUTPUT_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_OUTPUT_SM80_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/attention/kernels/sm80/byte_products_sm80.cuh>
#include <giwa/attention/kernels/sm80/few_rows_types_sm80.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/attention/sums/row_sums.cuh>
#include <giwa/tile/mma_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Each warp has some columns of O. They compute one leaf after the other, each from nothing, and fold the results.
template <class Types, class Mask, class Score, class Block>
struct few_rows_output {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using element = typename Types::element;
  using output = typename Types::output;
  using barrier = typename Types::named_barrier;
  static constexpr int leaf_keys = Types::leaf_keys, stages = Types::stages, threads = Types::output_threads;
  template <int Rows, int Columns>
  using bytes = byte_map<Rows, Columns, codes_of<element>>;
  using map =
      stdlib::conditional_t<Types::converts, typename few_rows_map_of<Types::rows, Types::warp_columns, bytes>::type,
                            typename few_rows_map_of<Types::rows, Types::warp_columns, warp_map>::type>;
  using output_tile = register_tile<float, map>;
  static constexpr int row_slots = map::rows;

  using state = row_sums<map>;  // of the rows, and this warp's columns

  const Block& block;
  const params& p;
  const typename Types::call_params& call;
  shared_storage& s;
  const int lane, warp;
  const score_steps<Mask, Score> steps;

  GIWA_DEVICE few_rows_output(const Block& b, const params& parameters, shared_storage& storage)
      : block(b),
        p(parameters),
        call(parameters.splits.call),
        s(storage),
        lane(b.lane()),
        warp(b.warp()),
        steps{call.mask, call.score, call.scale} {}

  /// Computes all work tiles of a split.
  GIWA_DEVICE void run(work_tile_reader<Block> reader, int64 split, int column) {
    for (int buffer = 0; buffer < 2; ++buffer) release_p(buffer);
    leaf_fold<state> fold;
    for (uint32 turn = 0; reader.has_work(); reader.next()) {
      const few_rows_work_tile& work = reader.work();
      const packed_rows rows = rows_of(call, work, p.splits.group, Types::rows);
      fold.reset();
      // What the end of the work tile needs is worked out before its first keys have come.
      const int begin = work.fold_begin();
      const bool is_whole = work.has_beginning() && work.has_end();
      uint32 unfinished = is_whole ? 0 : split_partials(begin, work.end).unfinished;
      float* to = p.splits.slot_of(split, column, work.has_beginning(), 0);
      arch::compute_here(unfinished), arch::compute_here(to);
      const auto hand_on = [&](const state& x) {
        store_partial(x, rows, to);
        to += partial_slot::floats(p.splits.shape.rows, Types::columns);
      };
      typename Types::visible_leaves leaves;
      for (int leaf = work.begin; leaf < work.end; ++leaf) {
        state x;
        x.reset();
        const tile_keep visible = leaves.of(block, call, rows, leaf);
        if (visible != tile_keep::none) compute(work, rows, leaf, visible, turn++, x);
        if (fold.push(0, leaf, x, begin)) hand_on(x);
      }
      if (is_whole) {
        store_output(work, rows, fold.finish());
      } else {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
        for (int l = fold_levels::count - 1; l >= 0; --l)
          if ((unfinished >> l & 1) != 0) hand_on(fold.unfinished(l));
      }
    }
  }

 private:
  GIWA_DEVICE void sync() const { arch::barrier_sync(barrier::outputs, threads); }
  GIWA_DEVICE bool has_columns() const { return warp < Types::outputs_in_use; }
  GIWA_DEVICE int first_column() const {
    if constexpr (Types::codes > 1)
      return bytes<16, Types::warp_columns>::first_column(warp);
    else
      return warp * Types::warp_columns;
  }
  /// The column of O of register i, past the last if it is of the other head of a pair.
  GIWA_DEVICE int column_of([[maybe_unused]] const packed_rows& rows, [[maybe_unused]] int row, int i) const {
    const int column = first_column() + map::column(lane, i);
    if constexpr (Types::heads == 1) return column;
    const int in_row = column - (row < rows.rows ? pairs_of_heads::head_of(rows, row) : 0) * Types::columns;
    return in_row < 0 ? Types::columns : in_row;
  }
  GIWA_DEVICE void release_p(int buffer) const {
    arch::barrier_arrive(Types::barrier_of(barrier::p_empty, buffer), Types::score_threads + Types::output_threads);
  }

  /// Computes the state of one leaf.
  GIWA_DEVICE void compute(const few_rows_work_tile& work, const packed_rows& rows, int leaf, tile_keep visible,
                           uint32 turn, state& x) const {
    const int stage = static_cast<int>(turn % stages), buffer = static_cast<int>(turn & 1);
    s.v.full[stage].wait(turn / stages & 1);
    bool scrubbed = false;
    if constexpr (may_be_nonfinite<element>) scrubbed = visible == tile_keep::some && scrub(rows, leaf, stage, buffer);
    arch::barrier_sync(Types::barrier_of(barrier::p_full, buffer), Types::score_threads + Types::output_threads);
    read_sums(buffer, x);
    if (has_columns()) multiply(x.o, stage, buffer);
    if constexpr (may_be_nonfinite<element>)
      if (scrubbed) add_nonfinite(work, rows, leaf, buffer, x);
    release_p(buffer);
    block.sync_warp();
    if (lane == 0) s.v.empty[stage].arrive();
  }

  /// Computes O of a leaf.
  GIWA_DEVICE void multiply(output_tile& o, int stage, int buffer) const {
    if constexpr (Types::converts) {
      multiply_rows(o, [&](auto& sums) { multiply_values(lane, sums, s.p[buffer], s.v.tile[stage], first_column()); });
      if (!p.v_scales) return;
      float factor[row_slots];
      GIWA_UNROLL
      for (int r = 0; r < row_slots; ++r) factor[r] = s.scales.o_factor[buffer][map::row(lane, r)];
      o.transform_rows(factor, [](float sum, float of_row) { return sum * of_row; });
    } else {
      multiply_rows(o, [&](auto& sums) { multiply_add(lane, sums, s.p[buffer], 0, s.v.tile[stage], first_column()); });
    }
  }

  GIWA_DEVICE void read_sums(int buffer, state& x) const {
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const int row = map::row(lane, r);
      x.m[r] = s.m[buffer][row];
      x.l[r] = s.sums[buffer][row][0];
      GIWA_UNROLL
      for (int w = 1; w < Types::scores_in_use; ++w) x.l[r] += s.sums[buffer][row][w];
    }
  }

  /// For leaves of which some row does not see every key. All output warps call it.
  GIWA_DEVICE bool scrub(const packed_rows& rows, int leaf, int stage, int buffer) const {
    return scrub_keys<Types::output_warps>(block, block.rank(), s.v.tile[stage], rows.keys - leaf * leaf_keys,
                                           s.has_nonfinite[buffer], [&] { arch::fence_async_proxy(), sync(); });
  }
  /// Adds what scrub() removed, times P, to the rows that see it: infinity, or NaN where P is 0. So a row gets the same bits
  /// in a tile that is not scrubbed because all of its rows see every key.
  GIWA_DEVICE void add_nonfinite(const few_rows_work_tile& work, const packed_rows& rows, int leaf, int buffer,
                                 state& x) const {
    if (!has_columns()) return;
    const auto& v = call.views.cache.v;
    const int first = leaf * leaf_keys, end = first + leaf_keys < rows.keys ? first + leaf_keys : rows.keys;
    for (int key = first; key < end; ++key) {
      const cache_row from = call.row_of(work.sequence, key);
      if (from.element < 0) continue;
      x.o.for_each(lane, [&](float& sum, int row, int column) {
        column += first_column();
        if (column >= v.extent(3)) return;
        const element value = v(from.element, from.row, work.head, column);
        if (is_nonfinite(value) && steps.keeps(rows, row, key))
          sum = fused_multiply_add(convert<float>{}(s.p[buffer](row, key - first)), convert<float>{}(value), sum);
      });
    }
  }

  /// Writes a partial to the workspace.
  GIWA_DEVICE void store_partial(const state& x, const packed_rows& rows, float* to) const {
    const partial_slot slot{p.splits.shape.rows, Types::columns};
    if (has_columns()) {
      GIWA_UNROLL
      for (int i = 0; i < x.o.registers; i += 2) {
        const int row = map::row(lane, map::slot(i)), column = column_of(rows, row, i);
        if (row < rows.rows && column < Types::columns)
          *reinterpret_cast<float2*>(to + slot.output(row) + column) = {x.o.value[i], x.o.value[i + 1]};
      }
    }
    if (warp != 0 || lane % 4 != 0) return;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(lane, r); row < rows.rows)
        *reinterpret_cast<float2*>(to + slot.sums(row)) = {x.m[r], x.l[r]};
  }

  /// Normalizes and writes rows that were not divided.
  GIWA_DEVICE void store_output(const few_rows_work_tile& work, const packed_rows& rows, const state& x) const {
    const cached_sequence& q = work.sequence;
    float lse[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const int row = map::row(lane, r);
      if (row >= rows.rows) continue;
      const cached_row_end<output> to(call, q, rows.head(row), rows.query(row));
      const finished_softmax<float> end = to.finish(x.m[r], x.l[r]);
      lse[r] = end.lse;
      if (!has_columns()) continue;
      GIWA_UNROLL
      for (int i = 0; i < x.o.registers; i += 2) {
        const float sums[2] = {x.o.value[i], x.o.value[i + 1]};
        if (map::slot(i) == r) to.store(column_of(rows, row, i), sums, end);
      }
    }
    if (call.lse.data() == nullptr) return;
    if (call.has_prior()) sync();  // the prior's lse may be the one that is written: all warps have read it
    if (warp != 0 || lane % 4 != 0) return;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(lane, r); row < rows.rows)
        call.lse(q.q_batch, rows.head(row), q.first_query_row + rows.query(row)) = lse[r];
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
