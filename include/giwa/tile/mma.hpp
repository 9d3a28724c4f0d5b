// SPDX-License-Identifier: MIT
// The product of two shared tiles, added to a register tile by the ordinary arithmetic of a group of threads.
#ifndef GIWA_TILE_MMA_HPP
#define GIWA_TILE_MMA_HPP

#include <giwa/base/assert.hpp>
#include <giwa/base/std.hpp>
#include <giwa/numeric/multiply_add.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/tile/element_run.hpp>
#include <giwa/tile/operand.hpp>
#include <giwa/tile/register_tile.hpp>
#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// A row's elements from `column` on, a multiple of Count, in the widest accesses that the layout has.
template <int Count, class Tile>
GIWA_HOST_DEVICE void read_row(const Tile& tile, int row, int column, float* to) {
  constexpr int run = common_power_of_two(Count, Tile::placement::run, 16);
  GIWA_UNROLL
  for (int i = 0; i < Count; i += run) {
    const auto part = element_run<typename Tile::value_type, run>::read(&tile(row, column + i));
    GIWA_UNROLL
    for (int j = 0; j < run; ++j) to[i + j] = convert<float>{}(part.get(j));
  }
}

}  // namespace detail

/// d += a b, for a of (rows, k) and b of (k, columns): fp16, bf16 or fp32, multiplied and added in fp32, in the order of k.
/// Each of the map's threads calls it, `thread` its rank among them; it waits for nobody. `multiply_add(thread, d, a, first,
/// b)` multiplies so many of a's columns from `first` on as b has rows; `first` is a multiple of that.
///
/// A thread reads 8 bytes of each of its rows of a, which serve for so many k, and its runs of a row of b. Where a warp's rows
/// of a begin at different banks (padded<16 / sizeof(T)>), and Run is 16 bytes of b or one word, that is free of bank
/// conflicts: Nsight Compute counts 0.1 % in the matrix product of the examples, and 25 % with a row-major a.
template <class Shape, int ThreadRows, int ThreadColumns, int Run, class T, class U, int DepthOfLeft, int Depth,
          class LayoutOfA, class LayoutOfB>
GIWA_HOST_DEVICE void multiply_add(int thread,
                                   register_tile<float, thread_map<Shape, ThreadRows, ThreadColumns, Run>>& d,
                                   const shared_tile<T, tile_shape<Shape::rows, DepthOfLeft>, LayoutOfA>& a, int first,
                                   const shared_tile<U, tile_shape<Depth, Shape::columns>, LayoutOfB>& b) {
  static_assert(DepthOfLeft % Depth == 0, "giwa::multiply_add: a has a multiple of the columns that b has rows.");
  GIWA_ASSERT(first % Depth == 0 && 0 <= first && first < DepthOfLeft, "a's columns are cut as b's rows are");
  static_assert(floating_element<T> && floating_element<U> && sizeof(T) <= 4 && sizeof(U) <= 4,
                "giwa::multiply_add multiplies tiles of fp16, bf16 or fp32.");
  using map = thread_map<Shape, ThreadRows, ThreadColumns, Run>;
  // 8 bytes of a row of a: with 16, 8 rows would take 32 registers, and 8 x 8 sums and they do not fit in 128.
  using of_row = typename shared_tile<T, tile_shape<Shape::rows, DepthOfLeft>, LayoutOfA>::placement;
  constexpr int step = detail::common_power_of_two(of_row::run, Depth, 8 / static_cast<int>(sizeof(T)));
  // A thread with few sums looks ahead, so that it does not wait for every read by itself.
  [[maybe_unused]] constexpr int products = map::registers * step, ahead = products < 128 ? 128 / products : 1;
#if defined(__CUDA_ARCH__)
#pragma unroll ahead
#endif
  for (int k = 0; k < Depth; k += step) {
    detail::element_run<T, step> of_a[map::rows];
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r)
      of_a[r] = detail::element_run<T, step>::read(&a(map::row(thread, r), first + k));
    GIWA_UNROLL
    for (int j = 0; j < step; ++j) {
      float of_b[map::columns];
      GIWA_UNROLL
      for (int i = 0; i < map::columns; i += Run) detail::read_row<Run>(b, k + j, map::column(thread, i), of_b + i);
      GIWA_UNROLL
      for (int r = 0; r < map::rows; ++r) {
        const float x = convert<float>{}(of_a[r].get(j));
        GIWA_UNROLL
        for (int i = 0; i < map::columns; ++i) {
          float& sum = d.value[r * map::columns + i];
          sum = detail::multiply_add(x, of_b[i], sum);
        }
      }
    }
  }
}
/// The same from the first column of a on, which has as many as b has rows.
template <class Shape, int ThreadRows, int ThreadColumns, int Run, class T, class U, int Depth, class LayoutOfA,
          class LayoutOfB>
GIWA_HOST_DEVICE void multiply_add(int thread,
                                   register_tile<float, thread_map<Shape, ThreadRows, ThreadColumns, Run>>& d,
                                   const shared_tile<T, tile_shape<Shape::rows, Depth>, LayoutOfA>& a,
                                   const shared_tile<U, tile_shape<Depth, Shape::columns>, LayoutOfB>& b) {
  multiply_add(thread, d, a, 0, b);
}

/// The same for `transposed(b)`, b of (columns, k): the product of the rows of two tiles. A thread reads 8 bytes of each of its
/// rows of both at a time. Where Run is 1, that is free of bank conflicts if the rows of a tile that the threads of a warp read
/// at once begin at different pairs of banks: up to 8 of them with padded<16 / sizeof(T)>, up to 16 with padded<8 / sizeof(T)>.
template <class Shape, int ThreadRows, int ThreadColumns, int Run, class T, class U, int Depth, class LayoutOfA,
          class LayoutOfB>
GIWA_HOST_DEVICE void multiply_add(
    int thread, register_tile<float, thread_map<Shape, ThreadRows, ThreadColumns, Run>>& d,
    const shared_tile<T, tile_shape<Shape::rows, Depth>, LayoutOfA>& a,
    const transposed_tile<shared_tile<U, tile_shape<Shape::columns, Depth>, LayoutOfB>>& b) {
  static_assert(floating_element<T> && floating_element<U> && sizeof(T) <= 4 && sizeof(U) <= 4,
                "giwa::multiply_add multiplies tiles of fp16, bf16 or fp32.");
  using map = thread_map<Shape, ThreadRows, ThreadColumns, Run>;
  using row_of_a = typename shared_tile<T, tile_shape<Shape::rows, Depth>, LayoutOfA>::placement;
  using row_of_b = typename shared_tile<U, tile_shape<Shape::columns, Depth>, LayoutOfB>::placement;
  constexpr int widest = 8 / static_cast<int>(sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U));
  constexpr int step =
      detail::common_power_of_two(detail::common_power_of_two(row_of_a::run, row_of_b::run, widest), Depth, widest);
  [[maybe_unused]] constexpr int products = map::registers * step, ahead = products < 128 ? 128 / products : 1;
#if defined(__CUDA_ARCH__)
#pragma unroll ahead
#endif
  for (int k = 0; k < Depth; k += step) {
    detail::element_run<T, step> of_a[map::rows];
    detail::element_run<U, step> of_b[map::columns];
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r) of_a[r] = detail::element_run<T, step>::read(&a(map::row(thread, r), k));
    GIWA_UNROLL
    for (int i = 0; i < map::columns; ++i)
      of_b[i] = detail::element_run<U, step>::read(&b.tile(map::column(thread, i), k));
    GIWA_UNROLL
    for (int j = 0; j < step; ++j) {
      GIWA_UNROLL
      for (int r = 0; r < map::rows; ++r) {
        const float x = convert<float>{}(of_a[r].get(j));
        GIWA_UNROLL
        for (int i = 0; i < map::columns; ++i) {
          float& sum = d.value[r * map::columns + i];
          sum = detail::multiply_add(x, convert<float>{}(of_b[i].get(j)), sum);
        }
      }
    }
  }
}

}  // namespace giwa::inline GIWA_ABI

#endif
