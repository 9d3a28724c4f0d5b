// SPDX-License-Identifier: MIT
// S and P of latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_SCORES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_SCORES_SM90_CUH

#include <giwa/arch/matrix_load.cuh>
#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/sm90/latent_byte_scores_sm90.cuh>
#include <giwa/attention/score/score_steps.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Each leaf has its own m, the largest score of its keys, so no sum of an earlier leaf is multiplied here.
template <class Types, class Mask, class Score, class Block>
struct latent_scores {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using operand = typename Types::operand;
  using barrier = typename Types::named_barrier;
  using bytes = latent_byte_scores<Types, Score, Block>;
  using scores_tile = warpgroup_tile<Types::rows>;  // (keys, rows)
  using map = transposed_output_map<Types::rows, 1>;
  static constexpr int threads = Types::score_threads, row_slots = map::rows;
  static constexpr int threads_of_both = Types::score_threads + Types::output_threads;

  const Block& block;
  const params& p;
  const typename Types::call_params& call;
  shared_storage& s;
  const int lane, warp;  // the rank in the warpgroup
  const score_steps<Mask, Score> steps;

  GIWA_DEVICE latent_scores(const Block& b, const params& parameters, shared_storage& storage, int w)
      : block(b),
        p(parameters),
        call(parameters.splits.call),
        s(storage),
        lane(b.lane()),
        warp(w),
        steps{call.mask, call.score, call.scale} {}

  /// Computes P of all leaves of a split.
  GIWA_DEVICE void run(work_tile_reader<Block> reader) {
    for (uint32 turn = 0; reader.has_work(); reader.next()) {
      const few_rows_work_tile& work = reader.work();
      const packed_rows rows = rows_of(call, work, p.splits.group, Types::rows);
      load_q(work, rows);
      typename Types::visible_leaves leaves;
      for (int leaf = work.begin; leaf < work.end; ++leaf) {
        const tile_keep visible = leaves.of(block, call, rows, leaf);
        if (visible != tile_keep::none) compute(rows, leaf, visible, turn++);
      }
    }
  }

 private:
  GIWA_DEVICE void sync() const { arch::barrier_sync(barrier::scores, threads); }
  GIWA_DEVICE bytes of_bytes() const { return {block, p, s, lane, warp}; }
  /// Loads the packed rows of q, zeros past their end. All products of the previous ones are done.
  GIWA_DEVICE void load_q(const few_rows_work_tile& work, const packed_rows& rows) const {
    sync();
    if constexpr (Types::has_format)
      of_bytes().load_q(work, rows);
    else if constexpr (rotates_queries<Score>)
      load_rotated_rows<threads>(warp * 32 + lane, call, work, rows, Types::rows, p.q_aligned, s.q);
    else
      copy_packed_rows<Types, threads>(warp * 32 + lane, p, call, work, rows, s);
    arch::fence_async_proxy();
    sync();
  }

  /// Computes P of a leaf.
  GIWA_DEVICE void compute(const packed_rows& rows, int leaf, tile_keep visible, uint32 turn) const {
    const int buffer = static_cast<int>(turn & 1);
    scores_tile scores;
    tile_of_list<typename Types::call_params> list;
    list.read(block, call, rows, leaf * Types::leaf_keys);
    // S with the first third of a tile's columns while the others come gains nothing (286 us and 284, H200, 2026-11-29).
    Types::wait_for_keys(p, s, turn);
    const auto& tile = s.k.tile[turn % Types::stages];
    [[maybe_unused]] uint32 exponents = 0;
    const columns_are_packed at{leaf * Types::leaf_keys};
    // What a selection leaves out has scale 0.
    [[maybe_unused]] const bool sees_all = Types::call_params::selects || visible == tile_keep::all;
    if constexpr (Types::has_format) {
      if (sees_all) exponents = of_bytes().find_exponents(tile);
      of_bytes().multiply(scores, tile);
    } else {
      arch::fence_operand(scores.value);
      arch::wgmma_fence();
      multiply<0, descriptors::in_turn>(scores, tile, 0, transposed(s.q), false);
      arch::wgmma_commit();
      arch::wgmma_wait<0>();
      arch::fence_operand(scores.value);
    }
    list.apply(block, 32 * warp + lane, steps, scores, rows, visible, at);
    share_maxima(scores, buffer);
    if constexpr (Types::has_format)
      if (!sees_all)
        of_bytes().share_largest_scales(scores, tile, buffer, [&](auto& of_row) { reduce(of_row, larger{}); });
    sync();
    float largest[row_slots];
    read_maxima(buffer, largest);
    arch::barrier_sync(Types::barrier_of(barrier::p_empty, buffer), threads_of_both);
    share_p(scores, largest, buffer);
    if constexpr (Types::has_format) {
      if (sees_all)
        of_bytes().share_weights(scores, exponents, tile, buffer);
      else
        of_bytes().share_weights_that_rows_see(scores, tile, buffer, [&](int i) {
          const int row = map::row(lane, map::slot(i));
          return steps.keeps(rows, row, at.key(map::column(32 * warp + lane, i), row));
        });
    } else {
      arch::fence_async_proxy();
    }
    arch::barrier_arrive(Types::barrier_of(barrier::p_full, buffer), threads_of_both);
  }

  /// Reduces values of rows over the lanes that share them.
  template <class Op>
  GIWA_DEVICE void reduce(float (&of_row)[row_slots], const Op& op) const {
    GIWA_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) {
      GIWA_UNROLL
      for (int r = 0; r < row_slots; ++r) of_row[r] = op(of_row[r], block.shuffle_xor(of_row[r], mask));
    }
  }
  /// Writes the largest score of each row among this warp's keys.
  GIWA_DEVICE void share_maxima(const scores_tile& scores, int buffer) const {
    float largest[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) largest[r] = -infinity_of<float>;
    GIWA_UNROLL
    for (int i = 0; i < scores.registers; ++i)
      largest[map::slot(i)] = larger_of(largest[map::slot(i)], scores.value[i]);
    reduce(largest, larger{});
    if (lane >= 4) return;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) s.maxima[buffer][map::row(lane, r)][warp] = largest[r];
  }
  /// Reads the largest score of each row in the leaf.
  GIWA_DEVICE void read_maxima(int buffer, float (&largest)[row_slots]) const {
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(s.maxima[buffer][map::row(lane, r)]);
      largest[r] = larger_of(larger_of(x.x, x.y), larger_of(x.z, x.w));
    }
  }
  /// Writes m of the leaf, rounded up in units of log2, so that no weight is above 1, and P and the sum of each row among this
  /// warp's keys.
  GIWA_DEVICE void share_p(scores_tile& scores, const float (&largest)[row_slots], int buffer) const {
    row_exponents of_row[row_slots];
    float sum[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) of_row[r] = row_exponents::of<0>(largest[r], steps.scale_log2()), sum[r] = 0;
    GIWA_UNROLL
    for (int i = 0; i < scores.registers; ++i) {
      scores.value[i] = exp2_of(of_row[map::slot(i)](scores.value[i]));
      sum[map::slot(i)] += scores.value[i];
    }
    if constexpr (!Types::has_format)
      store_transposed<operand>(lane, warp, s.p[buffer], [&](int i) { return scores.value[i]; });
    reduce(sum, plus{});
    if (lane >= 4) return;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      s.sums[buffer][map::row(lane, r)][warp] = sum[r];
      if (warp == 0)
        s.m[buffer][map::row(lane, r)] =
            largest[r] == -infinity_of<float> ? largest[r] : reference_of(largest[r], steps.scale_log2(), 0);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
