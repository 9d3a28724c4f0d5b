// SPDX-License-Identifier: MIT
// dq in the mma.sync kernel that computes all gradients: its product, and its way to the workspace.
#ifndef GIWA_ATTENTION_KERNELS_SM80_BACKWARD_DQ_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_BACKWARD_DQ_SM80_CUH

#include <giwa/arch/acquire_release.cuh>
#include <giwa/arch/global_add.cuh>
#include <giwa/arch/mbarrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/problem/backward_options.hpp>
#include <giwa/attention/problem/mask.hpp>
#include <giwa/tile/mma_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

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
