// SPDX-License-Identifier: MIT
// Register maps: which elements of a tile each thread of a group holds in its registers.
#ifndef GIWA_TILE_REGISTER_MAP_HPP
#define GIWA_TILE_REGISTER_MAP_HPP

#include <giwa/tile/fragment.hpp>
#include <giwa/tile/shape.hpp>

// A register map describes a tile that `threads` threads hold together, each `registers` elements of it:
//   shape               the shape of the tile
//   rows                the number of rows of which a thread has elements: its row slots
//   lanes               the number of lanes that share a row: a power of two, of consecutive lanes
//   slot(i)             the row slot of register i
//   row(thread, slot)   the row of the tile for a row slot
//   column(thread, i)   the column of the tile for register i
//   period              registers i and i + period have the same column

namespace giwa::inline GIWA_ABI {

/// The map of accumulators of mma.sync: (Rows / 16, Columns / 8) fragments, row by row. A lane has elements of two of every
/// 16 rows, and four lanes share a row.
template <int Rows, int Columns>
struct warp_map {
  static_assert(Rows % 16 == 0 && Columns % 8 == 0, "giwa::warp_map: choose a multiple of 16 rows and of 8 columns.");
  /// `threads` have `registers` elements each, of `rows` rows, which `lanes` share. Register i is in slot(i) and
  /// column(thread, i); a slot is row(thread, slot).
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

/// The map of the accumulator of wgmma m64n(Columns): each of the four warps of a warpgroup has 16 rows.
template <int Columns>
struct warpgroup_map {
  /// `threads` have `registers` elements each, of `rows` rows, which `lanes` share. Register i is in slot(i) and
  /// column(thread, i); a slot is row(thread, slot).
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

/// The map of the accumulator of wgmma whose right operand has its rows in another order: of each 16 columns 4c and 4c + 1, c from 0 to 3,
/// are 8 rows of its first half, and 4c + 2 and 4c + 3 of its second half. So a thread has four neighbours of each 16.
template <int Columns>
struct warpgroup_quads_map {
  /// `threads` have `registers` elements each, of `rows` rows, which `lanes` share. Register i is in slot(i) and
  /// column(thread, i); a slot is row(thread, slot).
  ///@{
  static_assert(Columns % 16 == 0, "giwa::warpgroup_quads_map: choose a multiple of 16 columns.");
  using base = warpgroup_map<Columns>;
  using shape = typename base::shape;
  static constexpr int threads = base::threads, registers = base::registers, rows = base::rows, lanes = base::lanes,
                       period = registers;

  GIWA_HOST_DEVICE static constexpr int slot(int i) { return base::slot(i); }
  GIWA_HOST_DEVICE static constexpr int row(int thread, int slot) { return base::row(thread, slot); }
  GIWA_HOST_DEVICE static constexpr int column(int thread, int i) {
    constexpr int half = registers / 2;
    return i % half / 4 * 16 + thread % 4 * 4 + i / half * 2 + i % 2;
  }
  ///@}
};

/// The map of ThreadRows x ThreadColumns threads, row-major: each thread has every ThreadRows-th row and every
/// ThreadColumns-th group of `Run` columns, so that neighbouring threads read neighbouring columns.
template <class Shape, int ThreadRows, int ThreadColumns, int Run = 1>
struct thread_map {
  static_assert(Shape::rows % ThreadRows == 0 && Shape::columns % (ThreadColumns * Run) == 0,
                "giwa::thread_map: make the rows a multiple of ThreadRows and the columns one of ThreadColumns * Run.");
  static_assert(
      (ThreadColumns & (ThreadColumns - 1)) == 0 && ThreadColumns <= 32,
      "giwa::thread_map: make ThreadColumns a power of two of at most 32: the threads of a row share a warp.");
  /// `threads` have `registers` elements each, of `rows` rows, which `lanes` share. Register i is in slot(i) and
  /// column(thread, i); a slot is row(thread, slot).
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
