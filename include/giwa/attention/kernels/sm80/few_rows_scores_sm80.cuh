// SPDX-License-Identifier: MIT
// The score warps of the kernel for few rows: S = Q K^T of a leaf, and P.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_SCORES_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_SCORES_SM80_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/sm80/few_rows_scaling_sm80.cuh>
#include <giwa/attention/kernels/sm80/few_rows_types_sm80.cuh>
#include <giwa/attention/score/score_steps.cuh>
#include <giwa/tile/mma_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Each warp has some keys of a leaf. They compute P and its sums relative to the largest score of the leaf, while the
/// output warps are at the leaf before.
template <class Types, class Mask, class Score, class Block>
struct few_rows_scores {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using operand = typename Types::operand;
  using barrier = typename Types::named_barrier;
  static constexpr int leaf_keys = Types::leaf_keys, warp_keys = Types::warp_keys, stages = Types::stages;
  static constexpr int threads = Types::score_threads;
  using map = typename few_rows_map_of<Types::rows, warp_keys, warp_map>::type;
  using scores_tile = register_tile<float, map>;

  const Block& block;
  const params& p;
  const typename Types::call_params& call;
  shared_storage& s;
  const int lane, group, warp;  // the rank in the group
  const score_steps<Mask, Score> steps;
  few_rows_scaling<Types, Block> scaling;  // of 8-bit caches

  GIWA_DEVICE few_rows_scores(const Block& b, const params& parameters, shared_storage& storage, int w)
      : block(b),
        p(parameters),
        call(parameters.splits.call),
        s(storage),
        lane(b.lane()),
        group(Types::score_groups == 1 ? 0 : w / Types::score_warps),
        warp(Types::score_groups == 1 ? w : w % Types::score_warps),
        steps{call.mask, call.score, call.scale},
        scaling{b, parameters, storage, lane, group, warp, warp_keys * warp} {}

  /// Computes P of all leaves of a split.
  GIWA_DEVICE void run(work_tile_reader<Block> reader) {
    for (uint32 turn = 0; reader.has_work(); reader.next()) {
      const few_rows_work_tile& work = reader.work();
      const packed_rows rows = rows_of(call, work, p.splits.group, Types::rows);
      load_q(work, rows);
      if constexpr (Types::heads == 2) {
        GIWA_UNROLL
        for (int r = 0; r < map::rows; ++r)
          scaling.second[r] = map::row(lane, r) < rows.rows && pairs_of_heads::head_of(rows, map::row(lane, r)) != 0;
      }
      typename Types::visible_leaves leaves;
      for (int leaf = work.begin; leaf < work.end; ++leaf) {
        const tile_keep visible = leaves.of(block, call, rows, leaf);
        if (visible != tile_keep::none) compute(rows, leaf, visible, turn++);
      }
    }
  }

 private:
  GIWA_DEVICE void sync() const {
    arch::barrier_sync(Types::score_groups == 1 || group == 0 ? barrier::scores : barrier::more_scores, threads);
  }
  GIWA_DEVICE bool has_keys() const { return warp < Types::scores_in_use; }
  /// Loads the packed rows of q. The score warps have read the previous ones: they have met since.
  GIWA_DEVICE void load_q(const few_rows_work_tile& work, const packed_rows& rows) {
    if constexpr (Types::converts)
      scaling.load_q(work, rows);
    else if constexpr (rotates_queries<Score>)
      load_rotated_rows<threads>(warp * 32 + lane, call, work, rows, Types::rows, p.q_aligned, s.q[group]);
    else
      copy_q(work, rows);
    sync();
  }
  GIWA_DEVICE void copy_q(const few_rows_work_tile& work, const packed_rows& rows) const {
    constexpr int run = 16 / static_cast<int>(sizeof(operand)), chunks = Types::q_tile::columns / run;
    const auto& q = call.views.q;
    const int width = static_cast<int>(q.extent(3));
    GIWA_UNROLL
    for (int n = 0; n < Types::rows * chunks; n += threads) {
      const int i = n + warp * 32 + lane, row = i / chunks, column = i % chunks * run;
      if (Types::rows * chunks % threads != 0 && row >= Types::rows) continue;
      const int count = row >= rows.rows || column >= width ? 0 : width - column < run ? width - column : run;
      operand* const to = s.q[group].chunk(row, column);
      const operand* from = nullptr;
      if (count > 0)
        from = &q(work.sequence.q_batch, work.sequence.first_query_row + rows.query(row), rows.head(row), column);
      if (count == run && p.q_aligned)
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      else
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
        for (int j = 0; j < run; ++j) to[j] = j < count ? from[j] : convert<operand>{}(0.f);
    }
  }
  /// Computes P of a leaf.
  GIWA_DEVICE void compute(const packed_rows& rows, int leaf, tile_keep visible, uint32 turn) {
    constexpr int threads_of_both = Types::score_threads + Types::output_threads;
    if (Types::score_groups > 1 && static_cast<int>(turn % Types::score_groups) != group) return;
    const int stage = static_cast<int>(turn % stages), buffer = static_cast<int>(turn & 1),
              slot = scaling.slot_of(turn);
    scores_tile scores;
    s.k.full[stage].wait(turn / stages & 1);
    if (has_keys()) {
      scores.fill(0);
      if constexpr (Types::converts) {
        multiply_head(scores, stage, 0);
        if constexpr (Types::heads == 2) {
          scores_tile of_second;
          of_second.fill(0);
          multiply_head(of_second, stage, 1);
          GIWA_UNROLL
          for (int i = 0; i < scores.registers; ++i)
            if (scaling.second[map::slot(i)]) scores.value[i] = of_second.value[i];
        }
        scaling.scale_scores(scores, stage);
      } else {
        multiply_rows(scores, [&](auto& sums) {
          multiply_add(lane, sums, s.q[group], 0, transposed(s.k.tile[stage]), warp_keys * warp);
        });
      }
    }
    block.sync_warp();
    if (lane == 0) s.k.empty[stage].arrive();
    if (has_keys()) {
      steps.apply(lane, scores, rows, visible, rows_are_packed{leaf * leaf_keys + warp_keys * warp});
      share_maxima(scores, buffer);
      if (scaling.has_weights()) scaling.share_largest(scores, slot, buffer, visible);
    }
    sync();
    float largest[map::rows];
    read_maxima(buffer, largest);
    const bool one_largest = scaling.has_one_largest(slot, buffer);
    if (scaling.finds_alone && scaling.has_weights() && !one_largest) {
      if (has_keys()) scaling.share_largest_of_rows(scores, slot, buffer);
      sync();
    }
    if (!one_largest) scaling.read_largest(scores, buffer);
    arch::barrier_sync(Types::barrier_of(barrier::p_empty, buffer), threads_of_both);
    if (has_keys()) share_p(rows, leaf, visible, scores, largest, slot, buffer, one_largest);
    arch::barrier_arrive(Types::barrier_of(barrier::p_full, buffer), threads_of_both);
  }

  /// Adds the products of all rows with a head of keys.
  GIWA_DEVICE void multiply_head(scores_tile& scores, int stage, int head) const {
    const int first_column = head * Types::policy::head_size / Types::codes;
    multiply_rows(scores, [&](auto& sums) {
      multiply_keys(lane, sums, s.q[group], s.k.tile[stage], warp_keys * warp, first_column);
    });
  }
  /// Writes the largest score of each row among this warp's keys.
  GIWA_DEVICE void share_maxima(const scores_tile& scores, int buffer) const {
    float largest[map::rows];
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r) largest[r] = -infinity_of<float>;
    reduce_rows_of_thread(scores, largest, larger{});
    reduce_over_lanes<map>(block, largest, larger{});
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r)
      if (lane % map::lanes == 0) s.maxima[buffer][map::row(lane, r)][warp] = largest[r];
  }
  /// Reads the largest score of each row in the leaf.
  GIWA_DEVICE void read_maxima(int buffer, float (&largest)[map::rows]) const {
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r) {
      const auto& of_row = s.maxima[buffer][map::row(lane, r)];
      largest[r] = of_row[0];
      GIWA_UNROLL
      for (int w = 1; w < Types::scores_in_use; ++w) largest[r] = larger_of(largest[r], of_row[w]);
    }
  }
  /// Writes m of the leaf, rounded up in units of log2, so that no weight is above 1, and P and the sum of each row among this
  /// warp's keys.
  GIWA_DEVICE void share_p(const packed_rows& rows, int leaf, tile_keep visible, scores_tile& scores,
                           const float (&largest)[map::rows], int slot, int buffer, bool one_largest) const {
    row_exponents of_row[map::rows];
    float sum[map::rows], odd[map::rows];
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r)
      of_row[r] = row_exponents::of<0>(largest[r], steps.scale_log2()), sum[r] = odd[r] = 0;
    scores.transform_rows(of_row, [](float score, const row_exponents& e) { return exp2_of(e(score)); });
    if (!scaling.has_weights()) store_p(scores, buffer);
    // In the same order for tiles of 16 and of 32 rows, which reduce_rows_of_thread() does not promise.
    GIWA_UNROLL
    for (int i = 0; i < scores.registers; i += 2)
      sum[map::slot(i)] += scores.value[i], odd[map::slot(i)] += scores.value[i + 1];
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r) sum[r] += odd[r];
    if (scaling.has_weights()) {
      if (one_largest)
        scaling.weigh(scores, slot);
      else
        scaling.weigh(scores, slot, [&](int i) {
          const int key = leaf * leaf_keys + warp_keys * warp + map::column(lane, i);
          return visible == tile_keep::all || steps.keeps(rows, map::row(lane, map::slot(i)), key);
        });
      store_p(scores, buffer);
    }
    reduce_over_lanes<map>(block, sum, plus{});
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r)
      if (lane % map::lanes == 0) {
        s.sums[buffer][map::row(lane, r)][warp] = sum[r];
        if (warp == 0)
          s.m[buffer][map::row(lane, r)] =
              largest[r] == -infinity_of<float> ? largest[r] : reference_of(largest[r], steps.scale_log2(), 0);
        if (warp == 0) scaling.share_factor(buffer, r, map::row(lane, r));
      }
  }
  GIWA_DEVICE void store_p(const scores_tile& scores, int buffer) const {
    GIWA_UNROLL
    for (int i = 0; i < scores.registers; i += 2) {
      const auto two = pack<operand>(scores.value[i], scores.value[i + 1]);
      operand* const to = &s.p[buffer](map::row(lane, map::slot(i)), warp_keys * warp + map::column(lane, i));
      __builtin_memcpy(to, &two, sizeof two);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
