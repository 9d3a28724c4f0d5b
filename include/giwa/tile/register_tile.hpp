// SPDX-License-Identifier: MIT
// register_tile: a tile in registers, of which each thread of a group holds the elements that a register map assigns to it.
#ifndef GIWA_TILE_REGISTER_TILE_HPP
#define GIWA_TILE_REGISTER_TILE_HPP

#include <giwa/base/std.hpp>
#include <giwa/grid/reduce.hpp>
#include <giwa/numeric/maximum.hpp>
#include <giwa/numeric/split.hpp>
#include <giwa/tile/register_map.hpp>

namespace giwa::inline GIWA_ABI {

/// This thread's elements of a tile. Starts uninitialised.
template <class T, class Map>
struct register_tile {
  /// The element type, the map, the shape of the tile, and the number of elements of a thread.
  ///@{
  using value_type = T;
  using map = Map;
  using shape = typename Map::shape;
  static constexpr int registers = Map::registers;
  ///@}

  T value[stdlib::size_t{registers}];  ///< The elements, in the order of the map.

  /// Sets all elements to x.
  GIWA_HOST_DEVICE constexpr void fill(T x) {
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) value[i] = x;
  }
  /// Replaces each element by f(element).
  template <class F>
  GIWA_HOST_DEVICE constexpr void transform(const F& f) {
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) value[i] = f(value[i]);
  }
  /// Replaces each element by f(element, of_row[row slot of the element]).
  template <class Row, class F>
  GIWA_HOST_DEVICE constexpr void transform_rows(const Row (&of_row)[Map::rows], const F& f) {
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) value[i] = f(value[i], of_row[Map::slot(i)]);
  }
  /// Calls f(element, row, column) for each element, with its position in the tile; `thread` is the rank of the thread in its
  /// group. Runs column by column, so that values of f that depend on the column are needed for one column at a time.
  template <class F>
  GIWA_HOST_DEVICE constexpr void for_each(int thread, const F& f) {
    GIWA_UNROLL
    for (int column = 0; column < Map::period; ++column) {
      GIWA_UNROLL
      for (int i = column; i < registers; i += Map::period)
        f(value[i], Map::row(thread, Map::slot(i)), Map::column(thread, i));
    }
  }
};

/// Rounds an accumulator of the tensor cores (warp_map, warpgroup_map) to the 16-bit left operand `to` of the next product.
/// The fragments of both have the same layout, so no data moves between lanes.
template <class T, class Map>
GIWA_HOST_DEVICE void to_operand(const register_tile<float, Map>& from, uint32 (&to)[Map::registers / 2]) {
  GIWA_UNROLL
  for (int i = 0; i < Map::registers / 2; ++i) {
    const auto two = pack<T>(from.value[2 * i], from.value[2 * i + 1]);
    __builtin_memcpy(&to[i], &two, 4);
  }
}

/// Splits an accumulator into two fp16 left operands: hi + lo has the precision of fp32 (numeric/split.hpp).
///
/// Parameters:
///   - from: the accumulator
///   - scale: its factor
///   - hi, lo: written
template <class Map>
GIWA_HOST_DEVICE void to_operands(const register_tile<float, Map>& from, float scale, uint32 (&hi)[Map::registers / 2],
                                  uint32 (&lo)[Map::registers / 2]) {
  GIWA_UNROLL
  for (int i = 0; i < Map::registers / 2; ++i) {
    const split_fp16_pair two = split(from.value[2 * i] * scale, from.value[2 * i + 1] * scale);
    __builtin_memcpy(&hi[i], &two.hi, 4);
    __builtin_memcpy(&lo[i], &two.lo, 4);
  }
}

/// Reduces this thread's elements of each of its rows: partial[r] = op(... op(partial[r], element) ..., element). Uses two
/// chains for each row if a thread has few rows, because each step of a chain waits for the previous one.
///
/// Parameters:
///   - tile: the register tile
///   - partial: a number for each of the thread's rows; read and written
///   - op: associative and commutative
template <class T, class Map, class Op>
GIWA_HOST_DEVICE constexpr void reduce_rows_of_thread(const register_tile<T, Map>& tile, T (&partial)[Map::rows],
                                                      const Op& op) {
  static_assert(Map::registers >= 2 * Map::rows,
                "giwa: a row reduction needs two elements of each row in a thread: choose a map with more columns for "
                "each thread.");
  constexpr bool two_chains = Map::rows < 4;
#if defined(__CUDA_ARCH__)
  T second[Map::rows];
#else
  T second[Map::rows] = {};  // g++ 12 warns otherwise, at -O1 and -O2: it does not follow `started`
#endif
  bool started[Map::rows] = {};
  GIWA_UNROLL
  for (int i = 0; i < Map::registers; ++i) {
    const int r = Map::slot(i);
    if (!two_chains || i % 2 == 0)
      partial[r] = op(partial[r], tile.value[i]);
    else if (started[r])
      second[r] = op(second[r], tile.value[i]);
    else
      second[r] = tile.value[i], started[r] = true;
  }
  GIWA_UNROLL
  for (int r = 0; r < Map::rows; ++r)
    if (two_chains) partial[r] = op(partial[r], second[r]);
}

/// Reduces over the lanes that share a row; afterwards each of them has the result of the row. All lanes of the warp call it.
///
/// Parameters:
///   - block: of the op
///   - partial: a number for each of the thread's rows; read and written
///   - op: associative and commutative
template <class Map, class Block, class T, class Op>
GIWA_HOST_DEVICE void reduce_over_lanes(const Block& block, T (&partial)[Map::rows], const Op& op) {
  GIWA_UNROLL
  for (int mask = Map::lanes / 2; mask > 0; mask /= 2) {
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) partial[r] = op(partial[r], block.shuffle_xor(partial[r], mask));
  }
}

}  // namespace giwa::inline GIWA_ABI

#endif
