// SPDX-License-Identifier: MIT
// Shared tiles as operands of a product, transposed or not.
#ifndef GIWA_TILE_OPERAND_HPP
#define GIWA_TILE_OPERAND_HPP

#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI {

/// A shared tile as a transposed operand. Refers to the tile; no data moves.
template <class Tile>
struct transposed_tile {
  const Tile& tile;  ///< The tile, not transposed.
};
/// Returns a shared tile as a transposed operand: `multiply(d, q, 0, transposed(k), false)` computes d = q k^T.
template <class Tile>
GIWA_HOST_DEVICE constexpr transposed_tile<Tile> transposed(const Tile& tile) {
  return {tile};
}

/// The tile of an operand, whether it is transposed, and the sizes of the operand.
template <class Operand>
struct operand_traits {
  /// The properties of the operand; get() returns its tile.
  ///@{
  using tile = Operand;
  using value_type = typename Operand::value_type;
  static constexpr bool is_transposed = false;
  static constexpr int rows = Operand::rows, columns = Operand::columns;
  GIWA_HOST_DEVICE static constexpr const tile& get(const Operand& o) { return o; }
  ///@}
};
/// The traits of a transposed tile.
template <class Tile>
struct operand_traits<transposed_tile<Tile>> {
  /// The properties of the operand; get() returns its tile.
  ///@{
  using tile = Tile;
  using value_type = typename Tile::value_type;
  static constexpr bool is_transposed = true;
  static constexpr int rows = Tile::columns, columns = Tile::rows;
  GIWA_HOST_DEVICE static constexpr const tile& get(const transposed_tile<Tile>& o) { return o.tile; }
  ///@}
};

namespace detail {
/// Checks what holds for d (rows, columns) = a (rows, k) b (k, columns) with every instruction.
template <int Columns, class Left, class Right>
GIWA_HOST_DEVICE constexpr void require_product() {
  using left = operand_traits<Left>;
  using right = operand_traits<Right>;
  static_assert(stdlib::is_same_v<typename left::value_type, typename right::value_type>,
                "giwa: give both operands of a product the same element type.");
  static_assert(left::columns == right::rows,
                "giwa: the left operand of a product must have as many columns as the right one has rows: use "
                "transposed(b) for d = a b^T.");
  static_assert(right::columns % Columns == 0,
                "giwa: the columns of the right operand must be a multiple of the columns of the accumulator.");
}
}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
