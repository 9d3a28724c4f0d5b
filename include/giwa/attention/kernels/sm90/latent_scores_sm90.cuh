// SPDX-License-Identifier: MIT
// S and P of latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_SCORES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_SCORES_SM90_CUH

#include <giwa/arch/matrix_load.cuh>
#include <giwa/arch/named_barrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/kernels/sm90/latent_byte_scores_sm90.cuh>
#include <giwa/attention/score/score_steps.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Each leaf has its own m, the largest score of its keys, so no sum of an earlier leaf is multiplied here. Of rows of bytes two groups of
/// warps take leaves in turn.
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
  const int lane, group, warp;  // the rank in the warpgroup
  const score_steps<Mask, Score> steps;

  GIWA_DEVICE latent_scores(const Block& b, const params& parameters, shared_storage& storage, int w)
      : block(b),
        p(parameters),
        call(parameters.splits.call),
        s(storage),
        lane(b.lane()),
        group(Types::score_groups == 1 ? 0 : w / Types::score_warps),
        warp(Types::score_groups == 1 ? w : w % Types::score_warps),
        steps{call.mask, call.score, call.scale} {}

  /// Computes P of all leaves of a split.
  GIWA_DEVICE void run(work_tile_reader<Block> reader) {
    for (uint32 turn = 0; reader.has_work(); reader.next()) {
      const few_rows_work_tile& work = reader.work();
      const packed_rows rows = rows_of(call, work, p.splits.group, Types::rows);
      load_q(work, rows);
      typename Types::visible_leaves leaves;
      const int end = work.end;
      for (int leaf = work.begin; leaf < end; ++leaf) {
        const tile_keep visible = leaves.of(block, call, rows, leaf);
        if (visible == tile_keep::none) continue;
        if (Types::score_groups == 1 || static_cast<int>(turn % Types::score_groups) == group)
          compute(rows, leaf, visible, turn);
        ++turn;
      }
    }
  }

 private:
  GIWA_DEVICE void sync() const {
    arch::barrier_sync(Types::score_groups == 1 || group == 0 ? barrier::scores : barrier::more_scores, threads);
  }
  GIWA_DEVICE void sync_all() const {
    if constexpr (Types::score_groups == 1)
      sync();
    else
      arch::barrier_sync(barrier::all_scores, Types::score_groups * threads);
  }
  /// What follows from the lane is computed at each use: kept over the loop it would spill.
  GIWA_DEVICE int own_lane() const { return Types::has_format ? arch::recomputed_here(lane) : lane; }
  GIWA_DEVICE bytes of_bytes() const { return {block, p, s, own_lane(), warp}; }
  /// Loads the packed rows of q, zeros past their end. All products of the previous ones are done.
  GIWA_DEVICE void load_q(const few_rows_work_tile& work, const packed_rows& rows) const {
    sync_all();
    if constexpr (Types::has_format)
      of_bytes().load_q(work, rows, Types::score_warps * group + warp);
    else if constexpr (rotates_queries<Score>)
      load_rotated_rows<threads>(warp * 32 + lane, call, work, rows, Types::rows, p.q_aligned, s.q);
    else
      copy_packed_rows<Types, threads>(warp * 32 + lane, p, call, work, rows, s);
    arch::fence_async_proxy();
    sync_all();
  }

  /// Computes P of a leaf.
  GIWA_DEVICE void compute(const packed_rows& rows, int leaf, tile_keep visible, uint32 turn) const {
    scores_tile scores;
    tile_of_list<typename Types::call_params> list;
    list.read(block, call, rows, leaf * Types::leaf_keys);
    // S with the first third of a tile's columns while the others come gains nothing (286 us and 284, H200, 2026-11-29).
    Types::wait_for_keys(p, s, turn);
    const auto& tile = s.k.tile[turn % Types::stages];
    const columns_are_packed at{leaf * Types::leaf_keys};
    if constexpr (Types::has_format) {
      of_bytes().multiply(scores, tile);
      // What a selection leaves out has scale 0, and so have keys past the end. The rare case has its own copy of the code, because
      // instructions come late after a jump over it.
      if (Types::call_params::selects || visible == tile_keep::all) [[likely]] {
        list.apply(block, 32 * warp + own_lane(), steps, scores, rows, tile_keep::all, at);
        if constexpr (!Types::call_params::selects) of_bytes().mask_end(scores, rows.keys - at.first_key);
        share<true>(rows, scores, at, turn);
      } else {
        list.apply(block, 32 * warp + own_lane(), steps, scores, rows, visible, at);
        share<false>(rows, scores, at, turn);
      }
    } else {
      arch::fence_operand(scores.value);
      arch::wgmma_fence();
      multiply<0, descriptors::in_turn>(scores, tile, 0, transposed(s.q), false);
      arch::wgmma_commit();
      arch::wgmma_wait<0>();
      arch::fence_operand(scores.value);
      list.apply(block, 32 * warp + lane, steps, scores, rows, visible, at);
      share<true>(rows, scores, at, turn);
    }
  }
  /// Computes P of scores, and hands it on.
  template <bool SeesAll>
  GIWA_DEVICE void share(const packed_rows& rows, scores_tile& scores, const columns_are_packed& at,
                         uint32 turn) const {
    const int buffer = static_cast<int>(turn & 1);
    [[maybe_unused]] const auto& tile = s.k.tile[turn % Types::stages];
    share_maxima(scores, buffer, [&]([[maybe_unused]] int n) {
      if constexpr (Types::has_format && SeesAll)
        if (n == 0) of_bytes().share_exponents(tile, buffer);
    });
    if constexpr (!SeesAll)
      of_bytes().share_largest_scales(scores, tile, buffer, row_of_lane(),
                                      [&](const auto& of_row) { return reduce(of_row, larger{}, no_work{}); });
    sync();
    // What the warps of the group have shared is read before they meet the output warps: after that, some may be at their next leaf.
    float largest[row_slots];
    read_maxima(buffer, largest);
    const float of_lane = largest_of(s.maxima[buffer][lane % Types::rows]);
    const auto meet = [&] { arch::barrier_sync(Types::barrier_of(barrier::p_empty, buffer), threads_of_both); };
    if constexpr (!Types::has_format) {
      meet();
      share_p(scores, largest, of_lane, buffer, no_work{});
      arch::fence_async_proxy();
    } else if constexpr (SeesAll) {
      const bytes of = of_bytes();
      const auto weights = of.weights_of(tile, buffer);
      meet();
      share_p(scores, largest, of_lane, buffer, [&](int g) { of.share_weights(scores, weights, buffer, g); });
      of.share_weights(scores, weights, buffer, bytes::groups - 1);
    } else {
      meet();
      share_p(scores, largest, of_lane, buffer, no_work{});
      of_bytes().share_weights_that_rows_see(scores, tile, buffer, [&, own = own_lane()](int i) {
        const int row = map::row(own, map::slot(i));
        return steps.keeps(rows, row, at.key(map::column(32 * warp + own, i), row));
      });
      sync();  // they have read the largest scales
    }
    arch::barrier_arrive(Types::barrier_of(barrier::p_full, buffer), threads_of_both);
  }

  /// The row that reduce() gives a lane: lane and lane + 16 have the same one.
  GIWA_DEVICE int slot_of_lane() const { return lane / 4 % 2 * 2 + lane / 8 % 2; }
  GIWA_DEVICE int row_of_lane() const { return map::row(lane, slot_of_lane()); }
  struct no_work {
    GIWA_DEVICE void operator()(int) const {}
  };
  /// Reduces values of rows over the lanes that share them. A lane keeps half of its rows at each step and gives the others away: 4
  /// shuffles, where each lane would get all rows by 12. between(n) is work for the time that step n takes. Rows are passed by value,
  /// because a reference that is selected would be memory.
  template <class Op, class Between>
  GIWA_DEVICE float reduce(float a, float b, float c, float d, const Op& op, const Between& between) const {
    const bool upper = (lane & 4) != 0, odd = (lane & 8) != 0;
    float x = block.shuffle_xor(upper ? a : c, 4), y = block.shuffle_xor(upper ? b : d, 4);
    between(0);
    x = op(upper ? c : a, x), y = op(upper ? d : b, y);
    const float other = block.shuffle_xor(odd ? x : y, 8);
    between(1);
    x = op(odd ? y : x, other);
    const float last = block.shuffle_xor(x, 16);
    between(2);
    return op(x, last);
  }
  template <class Op, class Between>
  GIWA_DEVICE float reduce(const float (&of_row)[row_slots], const Op& op, const Between& between) const {
    static_assert(row_slots == 4);
    return reduce(of_row[0], of_row[1], of_row[2], of_row[3], op, between);
  }
  /// Writes the largest score of each row among this warp's keys. between(n): other work meanwhile.
  template <class Between>
  GIWA_DEVICE void share_maxima(const scores_tile& scores, int buffer, const Between& between) const {
    float largest[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) largest[r] = -infinity_of<float>;
    GIWA_UNROLL
    for (int i = 0; i < scores.registers; ++i)
      largest[map::slot(i)] = larger_of(largest[map::slot(i)], scores.value[i]);
    const float x = reduce(largest, larger{}, between);
    if (lane < 16) s.maxima[buffer][row_of_lane()][warp] = x;
  }
  /// Reads the largest score of each row in the leaf.
  GIWA_DEVICE void read_maxima(int buffer, float (&largest)[row_slots]) const {
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      largest[r] = largest_of(s.maxima[buffer][map::row(lane, r)]);
    }
  }
  GIWA_DEVICE static float largest_of(const float (&of_warps)[Types::score_warps]) {
    const float4 x = *reinterpret_cast<const float4*>(of_warps);
    return larger_of(larger_of(x.x, x.y), larger_of(x.z, x.w));
  }
  /// Writes m of the leaf, rounded up in units of log2, so that no weight is above 1, and P and the sum of each row among this
  /// warp's keys. of_lane: the largest score of row number lane. between(n): what may be done with P in the meantime, for n from 0 to 2.
  template <class Between>
  GIWA_DEVICE void share_p(scores_tile& scores, const float (&largest)[row_slots], float of_lane, int buffer,
                           const Between& between) const {
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
    const float of_warp = reduce(sum, plus{}, between);
    if (lane < 16) s.sums[buffer][row_of_lane()][warp] = of_warp;
    if (warp == 0 && lane < Types::rows)
      s.m[buffer][lane] = of_lane == -infinity_of<float> ? of_lane : reference_of(of_lane, steps.scale_log2(), 0);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
