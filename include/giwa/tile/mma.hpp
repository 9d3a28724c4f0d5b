// SPDX-License-Identifier: MIT
// multiply_add: the product of two shared tiles, added to a register tile by the ordinary arithmetic of a group of threads.
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

/// Reads Count elements of a row from `column` on, a multiple of Count, in the widest accesses that the layout allows.
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

/// Whether multiply_add() takes these operands for d of this shape: a (rows, k), and b (k, columns) or transposed.
template <class Shape, class Left, class Right>
inline constexpr bool fits_product = false;
template <class Shape, class T, int Depth, class LayoutOfA, class U, class LayoutOfB>
inline constexpr bool fits_product<Shape, shared_tile<T, tile_shape<Shape::rows, Depth>, LayoutOfA>,
                                   shared_tile<U, tile_shape<Depth, Shape::columns>, LayoutOfB>> = true;
template <class Shape, class T, int Depth, class LayoutOfA, class U, class LayoutOfB>
inline constexpr bool fits_product<Shape, shared_tile<T, tile_shape<Shape::rows, Depth>, LayoutOfA>,
                                   transposed_tile<shared_tile<U, tile_shape<Shape::columns, Depth>, LayoutOfB>>> =
    true;

}  // namespace detail

/// Computes d += a b for shared tiles of fp16, bf16 or fp32. Multiplies and adds in fp32, in the order of k. All threads of
/// d's map call it. Contains no barrier.
///
/// Parameters:
///   - thread: the rank among the threads of d's map
///   - d: (rows, columns)
///   - a: (rows, k of the tile)
///   - first: columns [first, first + rows of b) of a are multiplied; a multiple of the rows of b
///   - b: (k, columns)
///
/// A thread reads 8 bytes of each of its rows of a and uses them for several k, and reads its runs of a row of b. This is
/// free of bank conflicts if the rows of a that a warp reads start at different banks (padded<16 / sizeof(T)>) and Run is
/// 16 bytes of b or one word: Nsight Compute counts 0.1 % in the matrix product of the examples, and 25 % with a row-major
/// a.
template <class Shape, int ThreadRows, int ThreadColumns, int Run, class T, class U, int DepthOfLeft, int Depth,
          class LayoutOfA, class LayoutOfB>
GIWA_HOST_DEVICE void multiply_add(int thread,
                                   register_tile<float, thread_map<Shape, ThreadRows, ThreadColumns, Run>>& d,
                                   const shared_tile<T, tile_shape<Shape::rows, DepthOfLeft>, LayoutOfA>& a, int first,
                                   const shared_tile<U, tile_shape<Depth, Shape::columns>, LayoutOfB>& b) {
  static_assert(DepthOfLeft % Depth == 0, "giwa::multiply_add: the columns of a must be a multiple of the rows of b.");
  GIWA_ASSERT(first % Depth == 0 && 0 <= first && first < DepthOfLeft,
              "first must be a column of a and a multiple of the rows of b");
  static_assert(floating_element<T> && floating_element<U> && sizeof(T) <= 4 && sizeof(U) <= 4,
                "giwa::multiply_add: use tiles of fp16, bf16 or fp32.");
  using map = thread_map<Shape, ThreadRows, ThreadColumns, Run>;
  // 8 bytes of a row of a: with 16 bytes, 8 rows take 32 registers, which do not fit in 128 with 8 x 8 sums.
  using of_row = typename shared_tile<T, tile_shape<Shape::rows, DepthOfLeft>, LayoutOfA>::placement;
  constexpr int step = detail::common_power_of_two(of_row::run, Depth, 8 / static_cast<int>(sizeof(T)));
  // A thread with few sums unrolls several steps, so that their reads overlap.
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
/// Computes d += a b as above, for an a with as many columns as b has rows.
///
/// Parameters:
///   - thread, d, a, b: as above
template <class Shape, int ThreadRows, int ThreadColumns, int Run, class T, class U, int Depth, class LayoutOfA,
          class LayoutOfB>
GIWA_HOST_DEVICE void multiply_add(int thread,
                                   register_tile<float, thread_map<Shape, ThreadRows, ThreadColumns, Run>>& d,
                                   const shared_tile<T, tile_shape<Shape::rows, Depth>, LayoutOfA>& a,
                                   const shared_tile<U, tile_shape<Depth, Shape::columns>, LayoutOfB>& b) {
  multiply_add(thread, d, a, 0, b);
}

/// Computes d += a b^T for `transposed(b)`, b (columns, k). Otherwise as above. A thread reads 8 bytes of each of its rows of
/// both tiles at a time. With Run 1 this is free of bank conflicts if the rows of a tile that a warp reads at once start at
/// different pairs of banks: up to 8 rows with padded<16 / sizeof(T)>, up to 16 with padded<8 / sizeof(T)>.
///
/// Parameters:
///   - thread, d, a: as above
///   - b: transposed(b) of a tile (columns, k)
template <class Shape, int ThreadRows, int ThreadColumns, int Run, class T, class U, int Depth, class LayoutOfA,
          class LayoutOfB>
GIWA_HOST_DEVICE void multiply_add(
    int thread, register_tile<float, thread_map<Shape, ThreadRows, ThreadColumns, Run>>& d,
    const shared_tile<T, tile_shape<Shape::rows, Depth>, LayoutOfA>& a,
    const transposed_tile<shared_tile<U, tile_shape<Shape::columns, Depth>, LayoutOfB>>& b) {
  static_assert(floating_element<T> && floating_element<U> && sizeof(T) <= 4 && sizeof(U) <= 4,
                "giwa::multiply_add: use tiles of fp16, bf16 or fp32.");
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

#if !defined(GIWA_DOXYGEN)  // a call that does not compile, and the reason
template <class Shape, int ThreadRows, int ThreadColumns, int Run, class Left, class Right>
  requires(!detail::fits_product<Shape, Left, Right>)
GIWA_HOST_DEVICE void multiply_add(int, register_tile<float, thread_map<Shape, ThreadRows, ThreadColumns, Run>>&,
                                   const Left&, const Right&) {
  using left = operand_traits<Left>;
  using right = operand_traits<Right>;
  static_assert(!left::is_transposed, "giwa::multiply_add: b alone may be transposed() with a thread_map.");
  static_assert(left::columns == right::rows,
                "giwa::multiply_add: a must have as many columns as b has rows: use transposed(b) for d += a b^T.");
  static_assert(left::rows == Shape::rows && right::columns == Shape::columns,
                "giwa::multiply_add: d must have the rows of a and the columns of b.");
}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
