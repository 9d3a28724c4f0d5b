// SPDX-License-Identifier: MIT
// Shared tiles as operands of a product: as they are, or with rows and columns exchanged.
#ifndef GIWA_TILE_OPERAND_HPP
#define GIWA_TILE_OPERAND_HPP

#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI {

/// A shared tile with rows and columns exchanged. Nothing moves: a product reads the tile the other way.
template <class Tile>
struct transposed_tile {
  const Tile& tile;  ///< as it lies
};
/// A shared tile as an operand with rows and columns exchanged: `multiply(d, q, 0, transposed(k), false)` is d = q k^T.
template <class Tile>
GIWA_HOST_DEVICE constexpr transposed_tile<Tile> transposed(const Tile& tile) {
  return {tile};
}

/// What a product asks of an operand: its tile, whether it is transposed, and its sizes as the product sees them.
template <class Operand>
struct operand_traits {
  /// Of the operand.
  ///@{
  using tile = Operand;
  using value_type = typename Operand::value_type;
  static constexpr bool is_transposed = false;
  static constexpr int rows = Operand::rows, columns = Operand::columns;
  GIWA_HOST_DEVICE static constexpr const tile& get(const Operand& o) { return o; }
  ///@}
};
/// Of a tile that is read the other way.
template <class Tile>
struct operand_traits<transposed_tile<Tile>> {
  /// Of the operand.
  ///@{
  using tile = Tile;
  using value_type = typename Tile::value_type;
  static constexpr bool is_transposed = true;
  static constexpr int rows = Tile::columns, columns = Tile::rows;
  GIWA_HOST_DEVICE static constexpr const tile& get(const transposed_tile<Tile>& o) { return o.tile; }
  ///@}
};

namespace detail {
/// The rules that hold for d (rows, columns) = a (rows, k) b (k, columns) on every path.
template <int Columns, class Left, class Right>
GIWA_HOST_DEVICE constexpr void require_product() {
  using left = operand_traits<Left>;
  using right = operand_traits<Right>;
  static_assert(stdlib::is_same_v<typename left::value_type, typename right::value_type>,
                "giwa: the operands of a product have one element type.");
  static_assert(left::columns == right::rows,
                "giwa: a product's left operand has as many columns as the right has rows.");
  static_assert(right::columns % Columns == 0,
                "giwa: the right operand's columns are those of the accumulator, or a multiple of them.");
}
}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
