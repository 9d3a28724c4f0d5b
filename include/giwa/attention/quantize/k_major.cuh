// SPDX-License-Identifier: MIT
// K-major codes: rows of a tensor become columns of 8 bits in tiles of shared memory.
#ifndef GIWA_ATTENTION_QUANTIZE_K_MAJOR_CUH
#define GIWA_ATTENTION_QUANTIZE_K_MAJOR_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/quantize/channels.hpp>
#include <giwa/attention/quantize/groups.hpp>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The second pass where codes of 8 bits are K-major: a thread writes words of four rows of two runs of columns. A warp has 32 / lanes
/// words of each of its columns. Relative to row-major codes, 4 x 4096 rows of 16 heads of 128: 1.20, 1.16, 1.10, 1.16 with 1, 2, 4, 8 lanes,
/// by tiles in shared memory 1.42 (H200, 2026-11-30).
template <class Problem, class T, class Code, int Count>
struct quantize_k_major_op {
  static constexpr int max_threads = 256, min_blocks = 3, rows = 4, runs = 2, lanes = 4, words = 32 / lanes;
  static constexpr bool by_channels = stdlib::same_as<Problem, head_channels<T, Code>>;
  struct params {
    Problem call;
    fast_divisor tiles_of_rows, tiles_of_columns, heads;  // tiles of a warp
  };
  using shared_storage = no_shared_storage;

  static params params_of(const Problem& p) {
    const index<4> n = p.x.extents();
    return {p, fast_divisor(ceil_div(n[1], int64{rows * words})),
            fast_divisor(ceil_div(n[3], int64{runs * lanes * Count})), fast_divisor(n[2])};
  }
  GIWA_HOST_DEVICE static int64 tiles(const params& p) {
    return p.call.x.extent(0) * p.heads.divisor() * p.tiles_of_columns.divisor() * p.tiles_of_rows.divisor();
  }

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    const int warps = block.size() / 32;
    const int64 all = tiles(p);
    // Backwards, as the other second passes.
    for (int64 i = block.block_rank() * warps + block.warp(); i < all; i += block.block_count() * warps)
      write(p, all - 1 - i, block.lane());
  }

 private:
  GIWA_HOST_DEVICE static void write(const params& p, int64 tile, int lane) {
    using run = element_run<T, Count>;
    const auto& x = p.call.x;
    const int64 of_columns = tile / p.tiles_of_rows;
    const int64 row = ((tile - of_columns * p.tiles_of_rows.divisor()) * words + lane / lanes) * rows;
    const int64 of_heads = of_columns / p.tiles_of_columns;
    const int64 first =
        ((of_columns - of_heads * p.tiles_of_columns.divisor()) * (runs * lanes) + lane % lanes) * Count;
    const int64 batch = of_heads / p.heads, head = of_heads - batch * p.heads.divisor();
    const int64 left = x.extent(1) - row, width = x.extent(3);
    if (left <= 0) return;
    run held[runs][rows]{};
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) {
      GIWA_UNROLL
      for (int k = 0; k < runs; ++k)
        if (r < left && first + k * lanes * Count < width)
          held[k][r] = run::read(&x(batch, row + r, head, first + k * lanes * Count));
    }
    float of_row[rows] = {};
    if constexpr (!by_channels) {
      GIWA_UNROLL
      for (int r = 0; r < rows; ++r)
        of_row[r] = scale_divisor::of(p.call.scales(batch, (r < left ? row + r : row) / p.call.rows, head)).reciprocal;
    }
    GIWA_UNROLL
    for (int k = 0; k < runs; ++k) {
      GIWA_UNROLL
      for (int i = 0; i < Count; ++i) {
        const int64 column = first + k * lanes * Count + i;
        if (column >= width) return;
        if constexpr (by_channels) {
          const float of_column = scale_divisor::of(p.call.scales(head, column)).reciprocal;
          GIWA_UNROLL
          for (int r = 0; r < rows; ++r) of_row[r] = of_column;
        }
        float four[rows];
        GIWA_UNROLL
        for (int r = 0; r < rows; ++r)
          four[r] = fma_with_subnormals(convert<float>{}(held[k][r].get(i)), of_row[r], -0.0f);
        const uint32 word = round_four(Code{}, four);
        Code* const to = &p.call.codes(batch, row, head, column);
        if (left >= rows)
          *reinterpret_cast<uint32*>(to) = word;
        else
          for (int r = 0; r < left; ++r) to[r] = Code::from_bits(static_cast<unsigned char>(word >> (8 * r)));
      }
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
