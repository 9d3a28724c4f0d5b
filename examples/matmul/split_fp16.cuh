// SPDX-License-Identifier: MIT
// Matrix product, before step 6: splits an fp32 matrix into two fp16 matrices, hi and lo, scaled by rows or columns.
#pragma once

#include "problem.cuh"

#include <giwa/numeric/split.hpp>

#include <cmath>

namespace matmul {

/// The lines that share a power of two as their scale.
enum class lines { rows, columns };

/// Four neighbours in a row.
struct alignas(16) four {
  float element[4];
};

/// Returns elements (row, column) to (row, column + 3) of a matrix, zeros outside; one access if contiguous and aligned.
GIWA_HOST_DEVICE inline four read_four(const giwa::tensor_view<const float, 2>& x, int64 row, int64 column) {
  if (row >= x.extent(0)) return {};
  const float* const at = x.data() + (row * x.stride(0) + column * x.stride(1));
  const int64 left = x.extent(1) - column;
  if (left >= 4 && x.stride(1) == 1 && reinterpret_cast<giwa::uint64>(at) % sizeof(four) == 0)
    return *reinterpret_cast<const four*>(at);
  four r{};
  GIWA_UNROLL
  for (int i = 0; i < 4; ++i)
    if (i < left) r.element[i] = at[i * x.stride(1)];
  return r;
}

/// Raises largest[line] to the largest magnitude of an element of the line, as the bits of a float, which have the same
/// order. May ignore a NaN.
template <lines Lines>
struct largest_op {
  // A thread reads 64 times four elements: along a row by its warp, or down the columns by its block.
  static constexpr int max_threads = 128, min_blocks = 8, reads = 64;
  static constexpr bool along = Lines == lines::rows;
  static constexpr int rows = along ? max_threads / 32 : reads, columns = 4 * (along ? 32 * reads : max_threads);
  static constexpr int row_step = along ? 0 : 1, column_step = along ? 128 : 0;

  using shared_storage = giwa::no_shared_storage;
  struct params {
    giwa::tensor_view<const float, 2> x;
    unsigned* largest;
    int64 across;  // blocks along a row
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    const int64 row = block.block_rank() / p.across * rows + (along ? block.warp() : 0);
    const int64 column = block.block_rank() % p.across * columns + 4 * (along ? block.lane() : block.rank());
    four most{};
    const auto take = [&](four x) {
      GIWA_UNROLL
      for (int j = 0; j < 4; ++j) most.element[j] = giwa::larger{}(most.element[j], ::fabsf(x.element[j]));
    };
    const bool inside =
        row + (reads - 1) * row_step < p.x.extent(0) && column + (reads - 1) * column_step + 4 <= p.x.extent(1);
    const float* const first = inside ? &p.x(row, column) : nullptr;
    const int64 step = row_step * p.x.stride(0) + column_step;
    if (inside && p.x.stride(1) == 1 && reinterpret_cast<giwa::uint64>(first) % sizeof(four) == 0 && step % 4 == 0) {
#if defined(__CUDA_ARCH__)
#pragma unroll 8  // reads in flight
#endif
      for (int i = 0; i < reads; ++i) take(*reinterpret_cast<const four*>(first + i * step));
    } else {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
      for (int i = 0; i < reads; ++i) take(read_four(p.x, row + i * row_step, column + i * column_step));
    }
    if constexpr (along) {
      float of_row = 0;
      for (const float x : most.element) of_row = giwa::larger{}(of_row, x);
      of_row = giwa::reduce_warp(block, of_row, giwa::larger{});
      if (block.lane() == 0 && row < p.x.extent(0)) raise(block, p.largest[row], of_row);
    } else {
      GIWA_UNROLL
      for (int j = 0; j < 4; ++j)
        if (column + j < p.x.extent(1)) raise(block, p.largest[column + j], most.element[j]);
    }
  }

 private:
  template <class Block>
  GIWA_HOST_DEVICE static void raise(Block block, unsigned& largest, float to) {
    static_cast<void>(block.atomic_max(largest, __builtin_bit_cast(unsigned, to)));
  }
};

/// Writes hi and lo of four elements of x; at[1] counts groups of four of a row.
template <lines Lines>
struct split_four {
  giwa::tensor_view<const float, 2> x;
  giwa::tensor_view<giwa::fp16, 3> parts;  // (hi and lo, rows, columns); the row stride is a multiple of four
  const float* largest;                    // of each line, readable and aligned in groups of four

  GIWA_HOST_DEVICE void operator()(const giwa::index<2>& at) const {
    const int64 row = at[0], column = 4 * at[1];
    const four from = read_four(x, row, column);
    four scale{};
    if constexpr (Lines == lines::rows)
      for (float& of : scale.element) of = largest[row];
    else
      scale = *reinterpret_cast<const four*>(largest + column);
    giwa::fp16 hi[4], lo[4];
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const giwa::split_fp16 p = giwa::split(from.element[i] * giwa::power_of_two_for(scale.element[i]));
      hi[i] = p.hi;
      lo[i] = p.lo;
    }
    giwa::fp16* const to = parts.data() + row * parts.stride(1) + column;
    const auto write = [](giwa::fp16* first, const giwa::fp16(&four_of_them)[4]) {
      giwa::uint64 word;
      __builtin_memcpy(&word, four_of_them, sizeof word);
#if defined(__CUDA_ARCH__)
      *reinterpret_cast<giwa::uint64*>(first) = word;  // one access
#else
      __builtin_memcpy(static_cast<void*>(first), &word, sizeof word);
#endif
    };
    write(to, hi);
    write(to + parts.stride(0), lo);
  }
};

/// Splits a matrix into hi and lo. `largest` holds zeros before, and the largest magnitude of each line afterwards. `where` is
/// a stream or giwa::host.
template <lines Lines, class Where>
giwa::status split_lines(const Where& where, const giwa::tensor_view<const float, 2>& x,
                         const giwa::tensor_view<giwa::fp16, 3>& parts, float* largest) {
  using op = largest_op<Lines>;
  const int64 across = giwa::ceil_div(x.extent(1), op::columns), down = giwa::ceil_div(x.extent(0), op::rows);
  if (const giwa::status s = giwa::launch(where, {.grid = across * down, .block = op::max_threads}, op{},
                                          {x, reinterpret_cast<unsigned*>(largest), across});
      !s.ok())
    return s;
  return giwa::for_all(where, giwa::extents{x.extent(0), giwa::ceil_div(x.extent(1), 4)},
                       split_four<Lines>{x, parts, largest});
}

/// Returns a sum of products of scaled elements without the scales of their lines. Multiplies in two steps in the same
/// direction, so that no intermediate result overflows or underflows if the final one does not.
GIWA_HOST_DEVICE inline float unscaled(float sum, float largest_of_row, float largest_of_column) {
  const int exponent = giwa::exponent_for(largest_of_row) + giwa::exponent_for(largest_of_column), half = exponent / 2;
  return sum * giwa::power_of_two(half) * giwa::power_of_two(exponent - half);
}

}  // namespace matmul
