// SPDX-License-Identifier: MIT
// Accumulators of a warpgroup as 8-bit left operands, without data that moves between lanes.
#ifndef GIWA_TILE_OPERAND_OF_BYTES_CUH
#define GIWA_TILE_OPERAND_OF_BYTES_CUH

#include <giwa/arch/matrix_load.cuh>
#include <giwa/arch/round_fp8.hpp>
#include <giwa/arch/shared_address.cuh>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/tile/register_tile.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The column of an accumulator whose number a left operand of to_operand_of_bytes() has at `place` along k. A lane of an
/// accumulator has columns 2j, 2j + 1, 2j + 8 and 2j + 9 of each 16, and of an 8-bit operand places 4j to 4j + 3. The other
/// operand must have row operand_key(place) at each place.
GIWA_HOST_DEVICE constexpr int operand_key(int place) {
  return place - place % 16 + place % 4 / 2 * 8 + place % 16 / 4 * 2 + place % 2;
}
/// The column of a row-major tile that transpose_bytes() writes to row `row`: of each 16 the even ones, then the odd ones.
GIWA_HOST_DEVICE constexpr int transposed_column(int row) { return row - row % 16 + row % 8 * 2 + row % 16 / 8; }

/// Rounds an accumulator to the e4m3 left operand `to` of the next product: to nearest, ties to even, saturated at 448, NaN as NaN.
template <class Map>
GIWA_HOST_DEVICE void to_operand_of_bytes(const register_tile<float, Map>& from, uint32 (&to)[Map::registers / 4]) {
  static_assert(Map::shape::columns % 32 == 0, "an operand has whole steps of 32 along k");
  GIWA_UNROLL
  for (int word = 0; word < Map::registers / 4; ++word) {
    const float* const v = from.value + word / 2 * 8 + word % 2 * 2;
    const float four[4] = {v[0], v[1], v[4], v[5]};
    to[word] = arch::fp32_to_e4m3(four);
  }
}

/// The same of an accumulator whose lanes have four neighbouring columns: the other operand has its rows in order.
template <int Columns>
GIWA_HOST_DEVICE void to_operand_of_bytes(const register_tile<float, warpgroup_quads_map<Columns>>& from,
                                          uint32 (&to)[Columns / 8]) {
  GIWA_UNROLL
  for (int word = 0; word < Columns / 8; ++word) {
    const float *const v = from.value + word / 2 * 4 + word % 2 * 2, *const later = v + Columns / 4;
    const float four[4] = {v[0], v[1], later[0], later[1]};
    to[word] = arch::fp32_to_e4m3(four);
  }
}

/// Bits 0 to 6 of each byte of the mask are set, and bit 7 too, where the byte of a word of e4m3 is NaN.
GIWA_HOST_DEVICE constexpr uint32 nan_bytes(uint32 word) {
  const uint32 top = ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
  return (top >> 7) * 0xffu;
}

/// Writes columns [16 column, 16 column + 16) of a tile of bytes (k, columns), 32 of k from 32 `step` on, to rows of its transpose
/// (columns, k): row r has column transposed_column(r), and place p along k has row operand_key(p). `change` may replace words,
/// whose bytes belong to two columns. All lanes of a warp call it. Conflict-free with 128-byte swizzles.
template <class From, class To, class Change>
GIWA_DEVICE void transpose_bytes(int lane, const From& from, int step, int column, To& to, const Change& change) {
  uint32 word[4];  // of 8 rows each
  arch::load_matrices<true>(word, arch::shared_address(from.chunk(32 * step + lane, 16 * column)));
  GIWA_UNROLL
  for (int i = 0; i < 4; ++i) change(word[i]);
  const uint32 turned[4] = {__byte_perm(word[0], word[1], 0x6420), __byte_perm(word[0], word[1], 0x7531),
                            __byte_perm(word[2], word[3], 0x6420), __byte_perm(word[2], word[3], 0x7531)};
  const int row = 16 * column + lane / 8 % 2 * 8 + lane % 8;
  arch::store_matrices(arch::shared_address(to.chunk(row, 32 * step + lane / 16 * 16)), turned);
}

/// Writes an accumulator whose columns have the order of transposed_column() to rows from `first_row` on of a view with contiguous
/// rows, rounded to O. Of each 16 columns a thread has four neighbours, which it writes at once if they are aligned.
template <int Columns, class O>
GIWA_DEVICE void store_transposed_columns(int thread, const register_tile<float, warpgroup_map<Columns>>& from,
                                          const tensor_view<O, 2>& to, int64 first_row) {
  using map = warpgroup_map<Columns>;
  struct alignas(4 * sizeof(O)) four {
    O element[4];
  };
  const bool aligned = to.stride(0) % 4 == 0 && reinterpret_cast<uint64>(to.data()) % sizeof(four) == 0;
  const int columns = static_cast<int>(to.extent(1));
  GIWA_UNROLL
  for (int slot = 0; slot < map::rows; ++slot) {
    const int64 row = first_row + map::row(thread, slot);
    if (row >= to.extent(0)) continue;
    O* const at = to.data() + row * to.stride(0);
    GIWA_UNROLL
    for (int group = 0; group < Columns / 16; ++group) {
      const float* const v = from.value + 8 * group + 2 * slot;
      const int column = 16 * group + thread % 4 * 4;
      const four all = {convert<O>{}(v[0]), convert<O>{}(v[4]), convert<O>{}(v[1]), convert<O>{}(v[5])};
      if (aligned && column + 4 <= columns) {
        *reinterpret_cast<four*>(at + column) = all;
      } else {
        GIWA_UNROLL
        for (int i = 0; i < 4; ++i)
          if (column + i < columns) at[column + i] = all.element[i];
      }
    }
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
