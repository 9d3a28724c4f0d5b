// SPDX-License-Identifier: MIT
// The boxes as which TMA copies a shared tile: one for each slab of a swizzled tile, a single one for a row-major tile.
#ifndef GIWA_TILE_TENSOR_BOX_HPP
#define GIWA_TILE_TENSOR_BOX_HPP

#include <giwa/numeric/index.hpp>
#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <class Layout>
struct tensor_layout {
  static_assert(always_false<Layout>, "giwa: TMA copies tiles with the layout row_major or swizzled: use one of them.");
};
template <>
struct tensor_layout<row_major> {
  static constexpr swizzle pattern = swizzle::none;
  template <class T, class Shape>
  static constexpr int columns = Shape::columns;
};
template <swizzle Swizzle>
struct tensor_layout<swizzled<Swizzle>> {
  static constexpr swizzle pattern = Swizzle;
  template <class T, class Shape>
  static constexpr int columns = swizzled<Swizzle>::template of<T, Shape>::slab_columns;
};

}  // namespace detail

/// The boxes of (rows, columns) as which TMA copies a Tile. In shared memory one follows the other.
template <class Tile>
struct tensor_box {
  /// The layout and its swizzle, and the sizes of a box in elements.
  ///@{
  using layout = detail::tensor_layout<typename Tile::layout>;
  static constexpr swizzle pattern = layout::pattern;
  static constexpr int rows = Tile::rows;
  static constexpr int columns = layout::template columns<typename Tile::value_type, typename Tile::shape>;
  static constexpr int elements = rows * columns;
  ///@}
  static_assert(rows <= 256 && columns <= 256,
                "giwa: a box of TMA has at most 256 rows, and 256 columns if it is row-major: use smaller tiles.");
  static_assert(columns * sizeof(typename Tile::value_type) % 16 == 0,
                "giwa: a row of a box of TMA must be a multiple of 16 bytes: choose more columns.");

  /// Returns the sizes of a box in a tensor of Rank dimensions, whose last two are the rows and columns of the tile.
  template <int Rank>
  GIWA_HOST_DEVICE static constexpr giwa::index<Rank> sizes() {
    static_assert(Rank >= 2,
                  "giwa: a tile map needs a tensor of at least two dimensions: the last two are the tile's.");
    giwa::index<Rank> size;
    for (int d = 0; d < Rank; ++d) size[d] = d == Rank - 2 ? rows : d == Rank - 1 ? columns : 1;
    return size;
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
