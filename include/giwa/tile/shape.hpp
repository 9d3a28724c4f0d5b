// SPDX-License-Identifier: MIT
// tile_shape: the rows and columns of a tile, known at compile time.
#ifndef GIWA_TILE_SHAPE_HPP
#define GIWA_TILE_SHAPE_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// The shape of a tile: `tile_shape<128, 64>` has 128 rows and 64 columns.
template <int Rows, int Columns>
struct tile_shape {
  static_assert(Rows > 0 && Columns > 0, "giwa::tile_shape: give a tile at least one row and one column.");
  static_assert(static_cast<int64>(Rows) * Columns <= 1 << 24,
                "giwa::tile_shape: a tile has at most 2^24 elements, because it lies in shared memory or registers.");
  /// The sizes in elements.
  ///@{
  static constexpr int rows = Rows;
  static constexpr int columns = Columns;
  static constexpr int size = Rows * Columns;
  ///@}
};

}  // namespace giwa::inline GIWA_ABI

#endif
