// SPDX-License-Identifier: MIT
// Products of tiles for the tests: small integers, whose product every path has to get exactly right, and ops' common parts.
#ifndef GIWA_TEST_GPU_TILE_PRODUCT_CASES_CUH
#define GIWA_TEST_GPU_TILE_PRODUCT_CASES_CUH

#include <giwa/numeric/precision.hpp>
#include <giwa/tile/operand.hpp>

#include <vector>

#include "support/hopper.cuh"
#include "support/random.hpp"

namespace giwa_test {

/// What the ops of these tests are told.
struct product_params {
  const float* a;  // (rows, depth)
  const float* b;  // (depth, columns)
  float* d;        // (rows, columns); what the accumulator starts with
  int first_row, first_column;
  bool accumulate;
};

/// Fills the tile of an operand that the product sees as `from`, row-major.
template <bool Transposed, class Block, class Tile>
GIWA_DEVICE void fill_operand(Block block, const float* from, Tile& to) {
  constexpr int rows = Transposed ? Tile::columns : Tile::rows, columns = Transposed ? Tile::rows : Tile::columns;
  for (int i = block.rank(); i < rows * columns; i += block.size()) {
    auto& element = Transposed ? to(i % columns, i / columns) : to(i / columns, i % columns);
    element = giwa::convert<typename Tile::value_type>{}(from[i]);
  }
}
template <bool Transposed, class Tile>
GIWA_DEVICE decltype(auto) as_operand(const Tile& tile) {
  if constexpr (Transposed)
    return giwa::transposed(tile);
  else
    return (tile);
}

/// Runs Op on random integers in [-8, 8] and compares all of d: rows [first_row, + window_rows) and columns
/// [first_column, + window_columns) hold the product, or the sum with what was there, and the rest is as it was.
template <class Op>
bool product_is_exact(int rows, int columns, int depth, int window_rows, int window_columns, int first_row,
                      int first_column, bool accumulate, random_sequence& random) {
  const auto integers = [&](int count) {
    std::vector<float> v(static_cast<std::size_t>(count));
    for (float& x : v) x = static_cast<float>(random.below(17) - 8);
    return v;
  };
  const std::vector<float> a = integers(rows * depth), b = integers(depth * columns), c = integers(rows * columns);
  const auto at = [](const std::vector<float>& v, int i) { return v[static_cast<std::size_t>(i)]; };
  const gpu_array<float> a_gpu(a), b_gpu(b);
  gpu_array<float> d_gpu(c);
  if (!accumulate) d_gpu.fill(0xff);  // NaN
  run_op<Op>({.block = Op::max_threads},
             {a_gpu.data(), b_gpu.data(), d_gpu.data(), first_row, first_column, accumulate});
  const std::vector<float> d = d_gpu.to_host();
  bool same = true;
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) {
      const float got = at(d, row * columns + column), before = at(c, row * columns + column);
      const bool written = row >= first_row && row < first_row + window_rows && column >= first_column &&
                           column < first_column + window_columns;
      if (!written) {
        same = same && (accumulate ? got == before : got != got);
        continue;
      }
      float expected = accumulate ? before : 0;
      for (int k = 0; k < depth; ++k) expected += at(a, row * depth + k) * at(b, k * columns + column);
      same = same && got == expected;
    }
  return same;
}

}  // namespace giwa_test

#endif
