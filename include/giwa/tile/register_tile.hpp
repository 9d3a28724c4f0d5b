// SPDX-License-Identifier: MIT
// A tile in registers: each thread of a group holds the elements that a register map gives it.
#ifndef GIWA_TILE_REGISTER_TILE_HPP
#define GIWA_TILE_REGISTER_TILE_HPP

#include <giwa/base/std.hpp>
#include <giwa/numeric/maximum.hpp>
#include <giwa/numeric/split.hpp>
#include <giwa/tile/register_map.hpp>

namespace giwa::inline GIWA_ABI {

/// This thread's elements of a tile. Uninitialised, as a number is.
template <class T, class Map>
struct register_tile {
  /// The element, the map, the tile, and how many elements a thread has.
  ///@{
  using value_type = T;
  using map = Map;
  using shape = typename Map::shape;
  static constexpr int registers = Map::registers;
  ///@}

  T value[registers];  ///< in the order of the map

  /// The same in all elements.
  GIWA_HOST_DEVICE constexpr void fill(T x) {
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) value[i] = x;
  }
  /// Each element becomes f(element).
  template <class F>
  GIWA_HOST_DEVICE constexpr void transform(const F& f) {
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) value[i] = f(value[i]);
  }
  /// Each element becomes f(element, the number of its row).
  template <class F>
  GIWA_HOST_DEVICE constexpr void transform_rows(const T (&of_row)[Map::rows], const F& f) {
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) value[i] = f(value[i], of_row[Map::slot(i)]);
  }
  /// Calls f(element, row, column) for each, rows and columns counted in the tile; `thread` is the rank in the group. Column by
  /// column: what f knows of one, it may forget with the next.
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

/// Rounds an accumulator of the tensor cores (warp_map, warpgroup_map) to the 16-bit left operand of the next product: fragments
/// of both agree, nothing moves between lanes.
template <class T, class Map>
GIWA_HOST_DEVICE void to_operand(const register_tile<float, Map>& from, uint32 (&to)[Map::registers / 2]) {
  GIWA_UNROLL
  for (int i = 0; i < Map::registers / 2; ++i) {
    const auto two = pack<T>(from.value[2 * i], from.value[2 * i + 1]);
    __builtin_memcpy(&to[i], &two, 4);
  }
}

/// The same times `scale`, in two pieces (split.hpp): high + low has fp32's digits.
template <class Map>
GIWA_HOST_DEVICE void to_operands(const register_tile<float, Map>& from, float scale,
                                  uint32 (&high)[Map::registers / 2], uint32 (&low)[Map::registers / 2]) {
  GIWA_UNROLL
  for (int i = 0; i < Map::registers / 2; ++i) {
    const split_fp16_pair two = split(from.value[2 * i] * scale, from.value[2 * i + 1] * scale);
    __builtin_memcpy(&high[i], &two.hi, 4);
    __builtin_memcpy(&low[i], &two.lo, 4);
  }
}

/// Reduces this thread's part of each of its rows: partial[r] = op(… op(partial[r], element) …, element). Two chains a row where
/// a thread has few rows, as each step waits for the one before.
template <class T, class Map, class Op>
GIWA_HOST_DEVICE constexpr void reduce_rows_of_thread(const register_tile<T, Map>& tile, T (&partial)[Map::rows],
                                                      const Op& op) {
  static_assert(Map::registers >= 2 * Map::rows, "giwa: a row reduction needs two elements of each row in a thread.");
  constexpr bool two_chains = Map::rows < 4;
  T second[Map::rows];
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

/// Reduces over the lanes that share a row; afterwards each of them has the row's result. All lanes of the warp call it.
template <class Map, class Block, class T, class Op>
GIWA_HOST_DEVICE void reduce_over_lanes(const Block& block, T (&partial)[Map::rows], const Op& op) {
  GIWA_UNROLL
  for (int mask = Map::lanes / 2; mask > 0; mask /= 2) {
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) partial[r] = op(partial[r], block.shuffle_xor(partial[r], mask));
  }
}

/// The larger of two, for reductions; a NaN is passed over, as by fmaxf.
struct larger {
  /// max(a, b).
  GIWA_HOST_DEVICE float operator()(float a, float b) const { return detail::larger_of(a, b); }
};
/// The sum of two, for reductions.
struct plus {
  /// a + b.
  template <class T>
  GIWA_HOST_DEVICE constexpr T operator()(T a, T b) const {
    return a + b;
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
