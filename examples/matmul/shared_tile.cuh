// SPDX-License-Identifier: MIT
// Matrix product, step 2: tiles in shared memory. Any GPU, and the CPU.
#pragma once

#include "problem.cuh"

namespace matmul {

/// A block of 32 x 32 threads computes a tile of c of that size. It loads a tile of a and a tile of b at a time into shared
/// memory, where 32 threads use each element: global memory is read 1/32 as often as in step 1. The pipeline fills one pair
/// of tiles while the other is used.
template <class T, class U, class Epilogue>
struct shared_tile_op {
  static constexpr int side = 32;
  static constexpr int max_threads = side * side, min_blocks = 1;

  using tile = giwa::shared_tile<T, giwa::tile_shape<side, side>>;
  struct stage {
    tile a, b;
  };
  struct shared_storage {
    giwa::pipeline<stage, 2, giwa::plain_copies> pipeline;
  };
  struct params {
    giwa::tensor_view<const T, 2> a, b;  // (m, k), (k, n)
    output<U, Epilogue> c;               // (m, n)
    cut tiles;
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const auto [tile_row, tile_column] = p.tiles.order[static_cast<int>(block.block_rank())];
    const int64 first_row = int64{tile_row} * side, first_column = int64{tile_column} * side;
    const int row = block.rank() / side, column = block.rank() % side;

    float sum = 0;
    s.pipeline.stream(
        giwa::with_threads<max_threads>(block), p.tiles.steps,
        [&](stage& to, const auto& copies, int step) {  // elements past the edges become zero
          copies.load(p.a, giwa::index<2>{first_row, int64{step} * side}, to.a);
          copies.load(p.b, giwa::index<2>{int64{step} * side, first_column}, to.b);
        },
        [&](const stage& from, int) {
          GIWA_UNROLL
          for (int k = 0; k < side; ++k)
            sum += giwa::convert<float>{}(from.a(row, k)) * giwa::convert<float>{}(from.b(k, column));
        });
    p.c.put(sum, first_row + row, first_column + column);
  }
};

/// Computes c = epilogue(a b), summed in fp32. `where` is a stream, and the call is asynchronous, or giwa::host.
template <class T, class U, class Where, class Epilogue = identity>
giwa::status shared_tile(const Where& where, const giwa::tensor_view<const T, 2>& a,
                         const giwa::tensor_view<const T, 2>& b, const giwa::tensor_view<U, 2>& c,
                         const Epilogue& epilogue = {}) {
  using op = shared_tile_op<T, U, Epilogue>;
  if (const giwa::status s = check(a, b, c); !s.ok()) return s;
  if (c.size() == 0) return {};
  const giwa::result<cut> tiles = cut_into(c.extent(0), c.extent(1), a.extent(1), op::side, op::side, op::side);
  if (!tiles.ok()) return tiles.state;
  return giwa::launch(where, {.grid = tiles.value.order.count(), .block = op::max_threads}, op{},
                      {a, b, {c, epilogue}, tiles.value});
}

}  // namespace matmul
