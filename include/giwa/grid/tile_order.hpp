// SPDX-License-Identifier: MIT
// The order in which the blocks of a grid visit the tiles of a matrix, so that concurrent blocks share inputs in L2.
#ifndef GIWA_GRID_TILE_ORDER_HPP
#define GIWA_GRID_TILE_ORDER_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// Numbers the tiles of a matrix in bands of `band` rows of tiles, column by column inside a band. If t blocks run at once
/// and band is near sqrt(t), their tiles span about sqrt(t) rows and sqrt(t) columns; row by row they would span one row
/// and t columns, and read more input.
struct tile_order {
  int rows;     ///< The number of rows of tiles.
  int columns;  ///< The number of columns of tiles.
  int band;     ///< The number of rows of tiles in a band, at least 1.

  /// The position of a tile, in tiles.
  struct position {
    int row;     ///< From 0.
    int column;  ///< From 0.
  };
  /// Returns the number of tiles.
  GIWA_HOST_DEVICE constexpr int count() const { return rows * columns; }
  /// Returns the position of tile number `i`, 0 <= i < count().
  GIWA_HOST_DEVICE constexpr position operator[](int i) const {
    const int full = band < rows ? band : rows, per_band = full * columns;  // at most count(): no overflow
    const int first_row = i / per_band * full, in_band = i % per_band;
    const int height = rows - first_row < full ? rows - first_row : full;  // of the last band
    return {first_row + in_band % height, in_band / height};
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
