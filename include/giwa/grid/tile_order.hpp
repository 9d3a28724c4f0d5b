// SPDX-License-Identifier: MIT
// The order in which the blocks of a grid visit the tiles of a matrix, so that those at work together share their inputs.
#ifndef GIWA_GRID_TILE_ORDER_HPP
#define GIWA_GRID_TILE_ORDER_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// Tiles in bands of `band` rows of tiles, column by column inside a band: of `t` tiles that are under way at once, about
/// sqrt(t) rows and columns of inputs are in the cache if band is near that, where row by row there would be one and t.
struct tile_order {
  /// Of tiles.
  ///@{
  int rows, columns, band;
  ///@}

  /// The place of a tile.
  struct position {
    /// In tiles.
    ///@{
    int row, column;
    ///@}
  };
  /// How many tiles.
  GIWA_HOST_DEVICE constexpr int count() const { return rows * columns; }
  /// The place of tile number `i`, 0 <= i < count().
  GIWA_HOST_DEVICE constexpr position operator[](int i) const {
    const int full = band < rows ? band : rows, per_band = full * columns;  // at most count(): no overflow
    const int first_row = i / per_band * full, in_band = i % per_band;
    const int height = rows - first_row < full ? rows - first_row : full;  // of the last band
    return {first_row + in_band % height, in_band / height};
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
