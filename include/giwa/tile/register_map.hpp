// SPDX-License-Identifier: MIT
// Which elements of a tile each thread of a group holds in its registers.
#ifndef GIWA_TILE_REGISTER_MAP_HPP
#define GIWA_TILE_REGISTER_MAP_HPP

#include <giwa/tile/fragment.hpp>
#include <giwa/tile/shape.hpp>

// A register map tells, for a tile that `threads` threads hold together, each `registers` elements of it:
//   shape               the tile
//   rows                how many rows a thread has elements of, its row slots
//   lanes               how many lanes share a row: a power of two, of consecutive lanes
//   slot(i)             the row slot of register i
//   row(thread, slot)   the tile's row that it stands for
//   column(thread, i)   the tile's column of register i
//   period              registers i and i + period are of one column

namespace giwa::inline GIWA_ABI {

/// The accumulators of mma.sync, (Rows / 16, Columns / 8) fragments of them, row by row. A lane has elements of two rows of
/// each 16, and four lanes share a row.
template <int Rows, int Columns>
struct warp_map {
  static_assert(Rows % 16 == 0 && Columns % 8 == 0, "giwa::warp_map: rows come by 16, columns by 8.");
  /// `threads` have `registers` elements each, of `rows` rows, which `lanes` share. Register i is in slot(i) and column(thread, i);
  /// a slot is row(thread, slot).
  ///@{
  using shape = tile_shape<Rows, Columns>;
  using fragment = mma_accumulator_fragment;
  static constexpr int threads = 32, registers = Rows * Columns / 32, rows = Rows / 8, lanes = 4;
  /// The registers of one row of fragments.
  static constexpr int fragment_row = Columns / fragment::columns * fragment::elements, period = fragment_row;

  GIWA_HOST_DEVICE static constexpr int slot(int i) { return i / fragment_row * 2 + i / 2 % 2; }
  GIWA_HOST_DEVICE static constexpr int row(int thread, int slot) {
    return slot / 2 * fragment::rows + fragment::position(thread % 32, slot % 2 * 2).row;
  }
  GIWA_HOST_DEVICE static constexpr int column(int thread, int i) {
    const int f = i % fragment_row / fragment::elements;
    return f * fragment::columns + fragment::position(thread % 32, i % fragment::elements).column;
  }
  ///@}
};

/// The accumulator of wgmma m64n(Columns): each of the four warps of a warpgroup has 16 rows.
template <int Columns>
struct warpgroup_map {
  /// `threads` have `registers` elements each, of `rows` rows, which `lanes` share. Register i is in slot(i) and column(thread, i);
  /// a slot is row(thread, slot).
  ///@{
  using shape = tile_shape<64, Columns>;
  using warp = warp_map<16, Columns>;
  static constexpr int threads = 128, registers = warp::registers, rows = 2, lanes = 4, period = registers;

  GIWA_HOST_DEVICE static constexpr int slot(int i) { return warp::slot(i); }
  GIWA_HOST_DEVICE static constexpr int row(int thread, int slot) {
    return thread % 128 / 32 * 16 + warp::row(thread, slot);
  }
  GIWA_HOST_DEVICE static constexpr int column(int thread, int i) { return warp::column(thread, i); }
  ///@}
};

/// A tile cut into ThreadRows x ThreadColumns threads, row-major: each has every ThreadRows-th row and every
/// ThreadColumns-th group of `Run` columns, so that neighbours read neighbouring columns.
template <class Shape, int ThreadRows, int ThreadColumns, int Run = 1>
struct thread_map {
  static_assert(Shape::rows % ThreadRows == 0 && Shape::columns % (ThreadColumns * Run) == 0,
                "giwa::thread_map: every thread has as many rows and columns as every other.");
  static_assert((ThreadColumns & (ThreadColumns - 1)) == 0 && ThreadColumns <= 32,
                "giwa::thread_map: the threads of a row lie in one warp, and their number is a power of two.");
  /// `threads` have `registers` elements each, of `rows` rows, which `lanes` share. Register i is in slot(i) and column(thread, i);
  /// a slot is row(thread, slot).
  ///@{
  using shape = Shape;
  static constexpr int threads = ThreadRows * ThreadColumns, registers = Shape::size / threads;
  static constexpr int rows = Shape::rows / ThreadRows, columns = Shape::columns / ThreadColumns, lanes = ThreadColumns;
  static constexpr int period = columns;

  GIWA_HOST_DEVICE static constexpr int slot(int i) { return i / columns; }
  GIWA_HOST_DEVICE static constexpr int row(int thread, int slot) { return slot * ThreadRows + thread / ThreadColumns; }
  GIWA_HOST_DEVICE static constexpr int column(int thread, int i) {
    return (i % columns / Run * ThreadColumns + thread % ThreadColumns) * Run + i % Run;
  }
  ///@}
};

}  // namespace giwa::inline GIWA_ABI

#endif
