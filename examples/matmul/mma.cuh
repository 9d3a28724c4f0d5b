// SPDX-License-Identifier: MIT
// Matrix product, step 4: tensor cores by mma.sync, with asynchronous copies. Any GPU.
#pragma once

#include "problem.cuh"

#include <giwa/tile/mma_sm80.cuh>

namespace matmul {

/// A block of 4 warps computes 128 x 128 of c, each warp 64 x 64 of it in tensor-core accumulators. The tiles are swizzled, so
/// that ldmatrix reads rows of a and columns of b without bank conflicts.
template <class T, class U, class Epilogue>
struct mma_op {
  static constexpr int rows = 128, columns = 128, depth = 64, stages = 3;
  static constexpr int warp_rows = 64, warp_columns = 64;
  static constexpr int max_threads = 128, min_blocks = 2;

  using layout = giwa::swizzled<giwa::swizzle::bytes_128>;
  struct stage {
    giwa::shared_tile<T, giwa::tile_shape<rows, depth>, layout> a;
    giwa::shared_tile<T, giwa::tile_shape<depth, columns>, layout> b;
  };
  struct shared_storage {
    giwa::pipeline<stage, stages, giwa::async_copies> pipeline;
  };
  struct params {
    giwa::tensor_view<const T, 2> a, b;  // (m, k), (k, n)
    output<U, Epilogue> c;               // (m, n)
    cut tiles;
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const auto [tile_row, tile_column] = p.tiles.order[static_cast<int>(block.block_rank())];
    const int64 first_row = int64{tile_row} * rows, first_column = int64{tile_column} * columns;
    const int warp_row = block.warp() / (columns / warp_columns) * warp_rows;
    const int warp_column = block.warp() % (columns / warp_columns) * warp_columns;

    giwa::warp_tile<warp_rows, warp_columns> sum;
    sum.fill(0);
    s.pipeline.stream(
        giwa::with_threads<max_threads>(block), p.tiles.steps,
        [&](stage& to, const auto& copies, int step) {  // elements past the edges become zero
          copies.load(p.a, giwa::index<2>{first_row, int64{step} * depth}, to.a);
          copies.load(p.b, giwa::index<2>{int64{step} * depth, first_column}, to.b);
        },
        [&](const stage& from, int) { giwa::multiply_add(block.lane(), sum, from.a, warp_row, from.b, warp_column); });
    const giwa::index<2> origin{first_row + warp_row, first_column + warp_column};
    sum.for_each(block.lane(), [&](float& x, int row, int column) {
      const int64 at_row = origin[0] + row, at_column = origin[1] + column;
      if (at_row < p.c.c.extent(0) && at_column < p.c.c.extent(1)) x = p.c.epilogue(x, at_row, at_column);
    });
    giwa::store(block.lane(), sum, p.c.c, origin);
  }
};

/// Computes c = epilogue(a b), summed in fp32, for fp16 (sm_75 and newer) and bf16 (sm_80 and newer). Any sizes, strides and
/// alignment; addresses and leading dimensions that are multiples of 16 bytes are fastest. Asynchronous on `stream`.
template <class T, class U, class Epilogue = identity>
giwa::status mma(cudaStream_t stream, const giwa::tensor_view<const T, 2>& a, const giwa::tensor_view<const T, 2>& b,
                 const giwa::tensor_view<U, 2>& c, const Epilogue& epilogue = {}) {
  using op = mma_op<T, U, Epilogue>;
  if (const giwa::status s = check(a, b, c); !s.ok()) return s;
  if (c.size() == 0) return {};
  const giwa::result<cut> tiles = cut_into(c.extent(0), c.extent(1), a.extent(1), op::rows, op::columns, op::depth);
  if (!tiles.ok()) return tiles.state;
  return giwa::launch(stream, {.grid = tiles.value.order.count(), .block = op::max_threads}, op{},
                      {a, b, {c, epilogue}, tiles.value});
}

}  // namespace matmul
