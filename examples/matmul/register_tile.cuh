// SPDX-License-Identifier: MIT
// Matrix product, step 3: tiles in registers, fed by asynchronous copies. Any GPU, and the CPU.
#pragma once

#include "problem.cuh"

#include <type_traits>

namespace matmul {

/// The tiles of step 3: a block computes Rows x Columns of c with ThreadRows x ThreadColumns threads, Depth of k at a time,
/// with a pipeline of `Stages` stages.
template <int Rows, int Columns, int Depth, int ThreadRows, int ThreadColumns, int Stages>
struct tiling {
  static constexpr int rows = Rows, columns = Columns, depth = Depth, stages = Stages;
  static constexpr int thread_rows = ThreadRows, thread_columns = ThreadColumns, threads = ThreadRows * ThreadColumns;
};

/// For large matrices: 8 x 8 elements for each thread, 128 bytes of each row of a at a time. 38.4 TFLOP/s for 4096 x 4096 x
/// 4096 in fp32 on an H200, 2026-11-21. Without the padding of a 37.3; then with three stages 35.8, half the depth 34.0, 128
/// x 256 in 8 x 16 for each thread 35.4, 64 x 64 24.7.
template <class T>
using large_tiles = tiling<128, 128, 128 / static_cast<int>(sizeof(T)), 16, 16, 2>;

/// Each thread accumulates a part of the block's tile of c in registers, for example 8 x 8 elements: 16 numbers that are read
/// from shared memory give 64 products. Step 2 reads two numbers for each product.
template <class T, class U, class Epilogue, class Tiling>
struct register_tile_op {
  static constexpr int rows = Tiling::rows, columns = Tiling::columns, depth = Tiling::depth;
  static constexpr int max_threads = Tiling::threads, min_blocks = 512 / max_threads;

  // A warp reads two neighbouring rows of a at a time; the padding puts them in different banks. Without it Nsight Compute
  // counts bank conflicts for a quarter of the reads; with it, none.
  using tile_a = giwa::shared_tile<T, giwa::tile_shape<rows, depth>, giwa::padded<16 / sizeof(T)>>;
  using tile_b = giwa::shared_tile<T, giwa::tile_shape<depth, columns>>;
  struct stage {
    tile_a a;
    tile_b b;
  };
  struct shared_storage {
    giwa::pipeline<stage, Tiling::stages, giwa::async_copies> pipeline;
  };
  struct params {
    giwa::tensor_view<const T, 2> a, b;  // (m, k), (k, n)
    output<U, Epilogue> c;               // (m, n)
    cut tiles;
  };

  // Neighbouring threads have neighbouring runs of 16 bytes of b.
  static constexpr int columns_each = columns / Tiling::thread_columns, packet = 16 / static_cast<int>(sizeof(T));
  using map = giwa::thread_map < giwa::tile_shape<rows, columns>, Tiling::thread_rows, Tiling::thread_columns,
        columns_each<packet ? columns_each : packet>;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const auto [tile_row, tile_column] = p.tiles.order[static_cast<int>(block.block_rank())];
    const int64 first_row = int64{tile_row} * rows, first_column = int64{tile_column} * columns;

    giwa::register_tile<float, map> sum;
    sum.fill(0);
    s.pipeline.stream(
        giwa::with_threads<max_threads>(block), p.tiles.steps,
        [&](stage& to, const auto& copies, int step) {  // elements past the edges become zero
          copies.load(p.a, giwa::index<2>{first_row, int64{step} * depth}, to.a);
          copies.load(p.b, giwa::index<2>{int64{step} * depth, first_column}, to.b);
        },
        [&](const stage& from, int) { giwa::multiply_add(block.rank(), sum, from.a, from.b); });
    sum.for_each(block.rank(),
                 [&](float x, int row, int column) { p.c.put(x, first_row + row, first_column + column); });
  }
};

/// Computes c = epilogue(a b), summed in fp32, with a custom tiling or large_tiles. `where` is a stream, and the call is
/// asynchronous, or giwa::host.
template <class Tiling = void, class T, class U, class Where, class Epilogue = identity>
giwa::status register_tile(const Where& where, const giwa::tensor_view<const T, 2>& a,
                           const giwa::tensor_view<const T, 2>& b, const giwa::tensor_view<U, 2>& c,
                           const Epilogue& epilogue = {}) {
  using op = register_tile_op<T, U, Epilogue, std::conditional_t<std::is_void_v<Tiling>, large_tiles<T>, Tiling>>;
  if (const giwa::status s = check(a, b, c); !s.ok()) return s;
  if (c.size() == 0) return {};
  const giwa::result<cut> tiles = cut_into(c.extent(0), c.extent(1), a.extent(1), op::rows, op::columns, op::depth);
  if (!tiles.ok()) return tiles.state;
  return giwa::launch(where, {.grid = tiles.value.order.count(), .block = op::max_threads}, op{},
                      {a, b, {c, epilogue}, tiles.value});
}

}  // namespace matmul
