// SPDX-License-Identifier: MIT
// The steps of the mma.sync kernels of attention_backward between and after their products: P and dS, NaN in tiles that not every
// row sees.
#ifndef GIWA_ATTENTION_KERNELS_SM80_BACKWARD_STEPS_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_BACKWARD_STEPS_SM80_CUH

#include <giwa/arch/acquire_release.cuh>
#include <giwa/arch/global_add.cuh>
#include <giwa/arch/mbarrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/problem/backward_options.hpp>
#include <giwa/attention/problem/mask.hpp>
#include <giwa/attention/problem/score_gradient.hpp>
#include <giwa/tile/mma_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Turns scores into P, and dp into dS unless only dv is computed. Fixed rows begin at `first`, moving rows, the columns, at
/// `begin`. The terms are those of the queries: `own` of the thread's rows, with the lse in powers of two, or `of_columns`.
/// `careful`: in the second pass of a block that saw NaN; the first has given the modifier's gradients of kept pairs, and
/// summed those of its parameters.
template <gradient Of, bool Masked, class Block, class Map, class Mask, class Score, class Parameters>
GIWA_DEVICE void weigh(const Block& block, const score_steps<Mask, Score>& steps,
                       const typename score_steps<Mask, Score>::bounds& bounds, [[maybe_unused]] bool careful,
                       int first, int begin, register_tile<float, Map>& scores, register_tile<float, Map>& dp,
                       const row_terms (&own)[Map::rows], const row_terms* of_columns,
                       [[maybe_unused]] Parameters& parameters) {
  constexpr bool modified = score_steps<Mask, Score>::modified, rows_are_keys = Of != gradient::of_q;
  const float factor = modified ? log2_e<float> : steps.scale * log2_e<float>;
  const int lane = block.lane();
  [[maybe_unused]] kept_tile<Map, rows_are_keys> undropped;
  if constexpr (drops_weights<Score>)
    undropped.find(block, dropout_bits(steps.score, steps.random_key, bounds.batch, bounds.head), lane, first, begin);
  GIWA_UNROLL
  for (int c = 0; c < Map::period / 2; ++c) {  // a thread has two of every eight columns
    const int of_first = c / 2 * 4 + c % 2, column = Map::column(lane, of_first);
    row_terms t{};
    if constexpr (rows_are_keys) {
      t = of_columns[column];
      t.lse *= log2_e<float>;
    }
    GIWA_UNROLL
    for (int slot = 0; slot < Map::rows; ++slot) {
      const int i = slot / 2 * Map::period + of_first + slot % 2 * 2, row = Map::row(lane, slot);
      const int query = rows_are_keys ? begin + column : first + row,
                key = rows_are_keys ? first + row : begin + column;
      if constexpr (!rows_are_keys) t = own[slot];
      bool kept = true;
      if constexpr (modified) kept = bounds.contain(query, key);
      if constexpr (Masked) kept = steps.keeps(bounds, query, key);
      float y = scores.value[i], slope = 1;
      [[maybe_unused]] float z = 0;
      if constexpr (modified) {
        z = device_product(y, steps.scale);
        if (kept) {
          const dual<float> at = modified_score(steps.score, z, bounds.place(query, key));
          y = at.value, slope = at.slope;
        }
      }
      const float weight = exp2_of(fused_multiply_add(y, factor, -t.lse));
      float drop = 1;
      if constexpr (drops_weights<Score>) drop = undropped[i] ? kept_scale(steps.score) : 0;
      scores.value[i] = kept ? weight * drop : 0;
      if constexpr (Of != gradient::of_v) {
        const float dy = weight * (dp.value[i] * drop - t.delta);
        if constexpr (Of == gradient::of_q && gradient_of<Score>::wanted)
          if (kept && !careful)
            gradient_of<Score>::give(steps.score, dy, z, bounds.place(query, key), parameters.of(slot));
        dp.value[i] = kept ? dy * slope : 0;
      }
    }
  }
}

/// Fills each row of x with NaN where it, or y if WithY, has NaN or infinity: then P and dS are NaN wherever the pair is
/// kept. clear_marked() removes these rows from the next products, so that they reach no other pair. Written for small code:
/// few inputs have such values.
template <bool WithY, class Block, class TileX, class TileY>
GIWA_DEVICE void mark_nonfinite(const Block& block, TileX& x, const TileY& y) {
  for (int row = block.rank(); row < TileX::rows; row += block.size()) {
    bool any = false;
#pragma unroll 1
    for (int i = 0; i < TileX::columns; ++i) any = any || is_nonfinite(x(row, i));
#pragma unroll 1
    for (int i = 0; WithY && i < TileY::columns; ++i) any = any || is_nonfinite(y(row, i));
#pragma unroll 1
    for (int i = 0; any && i < TileX::columns; ++i) x(row, i) = convert<typename TileX::value_type>{}(nan_of<float>);
  }
}
/// Sets the marked rows of x, and of y if WithY, to 0.
template <bool WithY, class Block, class TileX, class TileY>
GIWA_DEVICE void clear_marked(const Block& block, TileX& x, TileY& y) {
  const auto zero = convert<typename TileX::value_type>{}(0.0f);
  for (int row = block.rank(); row < TileX::rows; row += block.size()) {
    const bool marked = is_nonfinite(x(row, 0));
#pragma unroll 1
    for (int i = 0; marked && i < TileX::columns; ++i) x(row, i) = zero;
#pragma unroll 1
    for (int i = 0; marked && WithY && i < TileY::columns; ++i) y(row, i) = zero;
  }
}

/// What one thread notes of a tile of queries for all.
struct sm80_tile_note {
  int n;  // the tile, or -1: there are no more
  tile_keep keep;
  int part;   // where dq is added: the first part of the tile (dq_parts), or -1: nowhere
  int after;  // 1 + the tile of keys that this one waits for, or 0: it is the first
};

/// A thread's lane, its group of warps, and its warp in the group. Read again for each product, so that what follows from it
/// takes no registers in others: 128 and 64 spilled 100 bytes, and ptxas read operands only when they were needed.
struct sm80_thread_place {
  static constexpr int warps_of_group = 4;
  const int rank = arch::read_thread_rank(), lane = rank % 32, group = rank / (32 * warps_of_group),
            warp = rank / 32 % warps_of_group;
};

/// Adds dq of a tile of queries, dS^T (keys, queries) times k, to the sums in the workspace. Each group has half of it: 64 rows
/// of 128, or half of the columns. Tiles of keys add in the order that sm90_dq_writer describes.
template <int Queries, int Width, int HeadSize, class Block, class Gradients, class Keys>
GIWA_DEVICE void sm80_add_dq(const Block& block, const backward_workspace& w, const sm80_tile_note& to,
                             const Gradients& ds, const Keys& k) {
  if (to.part < 0) return;
  constexpr bool by_queries = Queries == 128;
  constexpr int columns = by_queries ? Width : Width / 2;  // of a group
  constexpr int warps_of_columns = columns % 32 == 0 ? 2 : 1,
                rows = 64 * warps_of_columns / sm80_thread_place::warps_of_group;
  constexpr int warp_columns = columns / warps_of_columns, per_row = warp_columns / 8;
  const auto [rank, lane, group, warp] = sm80_thread_place{};
  const int row = warp / warps_of_columns * rows,
            column = (by_queries ? 0 : group * columns) + warp % warps_of_columns * warp_columns;
  warp_tile<rows, warp_columns> dq;
  dq.fill(0);
  // Read before the product, under which the answer comes. In relaxed order, because nothing is read of what other blocks
  // have written: an acquire would empty the L1 cache. The additions follow it by the branch.
  const int after = to.after;
  const int* const word = w.added + to.part;
  int seen = after;
  if (lane == 0 && after != 0) seen = arch::load_relaxed(word);
  multiply_add(lane, dq, transposed(ds), row + (by_queries ? 64 * group : 0), k, column);
#if defined(GIWA_RANDOM_DELAYS)
  if (lane == 0) arch::sleep_at_random();
#endif
  while (seen != after) seen = arch::load_relaxed(word);
  block.sync_warp();
  // Parts follow each other, so that the next eight columns are at the same distance in this part and in the next.
  constexpr int of_columns = dq_parts::offset(0, 1), of_rows = dq_parts::offset(32, 0);
  static_assert(8 * of_columns == dq_parts::floats);
  float* const at = w.dq + int64{to.part + (by_queries ? group : 0)} * dq_parts::floats +
                    (column / 8 * of_columns + dq_parts::offset(2 * row + lane, 0));
  const int end = (by_queries ? 1 : dq_parts::of_tile(HeadSize)) * 8 - column / 8;
  const auto put = [&](const auto& put_four) {
    GIWA_UNROLL
    for (int i = 0; i < rows / 16; ++i) {
      GIWA_UNROLL
      for (int j = 0; j < per_row; ++j) {
        const float* const from = dq.value + (i * per_row + j) * 4;
        if (Width <= HeadSize || j < end)
          put_four(at + (j * of_columns + i * of_rows), make_float4(from[0], from[1], from[2], from[3]));
      }
    }
  };
  if (after == 0)
    put([](float* to_four, const float4& four) { *reinterpret_cast<float4*>(to_four) = four; });
  else
    put([](float* to_four, const float4& four) { arch::add_four(to_four, four); });
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
