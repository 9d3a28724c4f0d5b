// SPDX-License-Identifier: MIT
// The shape of a tile: rows and columns, known at compile time.
#ifndef GIWA_TILE_SHAPE_HPP
#define GIWA_TILE_SHAPE_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// A tile of so many rows and columns: `tile_shape<128, 64>`.
template <int Rows, int Columns>
struct tile_shape {
  static_assert(Rows > 0 && Columns > 0, "giwa::tile_shape: a tile has at least one row and one column.");
  static_assert(static_cast<int64>(Rows) * Columns <= 1 << 24,
                "giwa::tile_shape: a tile lies in shared memory or registers, and has at most 2^24 elements.");
  /// In elements.
  ///@{
  static constexpr int rows = Rows;
  static constexpr int columns = Columns;
  static constexpr int size = Rows * Columns;
  ///@}
};

}  // namespace giwa::inline GIWA_ABI

#endif
