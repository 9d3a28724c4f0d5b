// SPDX-License-Identifier: MIT
// The decisions of dropout for the registers of a thread of the tensor cores.
#ifndef GIWA_ATTENTION_PROBLEM_KEPT_TILE_HPP
#define GIWA_ATTENTION_PROBLEM_KEPT_TILE_HPP

#include <giwa/arch/byte_signs.hpp>
#include <giwa/attention/problem/dropout.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The decisions for all registers of a thread's accumulator `Map` of the tensor cores (warp_map, warpgroup_map): one bit
/// each. In 16 x 16 weights a thread has two rows, at a distance of 8, and four columns, at distances of 1 and 8, and four
/// threads share four groups of dropout_bits. For four such squares in a row of them, each of the four computes the groups
/// of one square, and two exchanges give each thread its 8 bits of each square: Philox is called once for every weight.
template <class Map, bool RowsAreKeys>
class kept_tile {
 public:
  /// The tile begins at `first_row` and `first_column`, multiples of 16. All threads of the warp call it.
  template <class Block>
  GIWA_HOST_DEVICE void find(const Block& block, const dropout_bits& bits, int thread, int first_row,
                             int first_column) {
    const bool upper = (thread & upper_lane) != 0, odd = (thread & odd_lane) != 0;
    const int square = (upper ? 2 : 0) + (odd ? 1 : 0);
    GIWA_UNROLL
    for (int w = 0; w < words; ++w) {
      const int row = first_row + Map::row(thread, w / words_of_rows * 2);
      const int column = first_column + Map::column(thread, 0) + 16 * (w % words_of_rows * 4 + square);
      uint32 word = RowsAreKeys ? bits.of_group(column, row) : bits.of_group(row, column);
      word = exchange<upper_bit>(block, word, upper, upper_lane);
      kept_[w] = exchange<odd_bit>(block, word, odd, odd_lane);
    }
  }
  /// Whether the weight in register i is kept.
  GIWA_HOST_DEVICE bool operator[](int i) const { return (kept_[word_of(i)] >> bit_of(i) & 1) != 0; }
  /// Clears the dropped weights of a left operand, as to_operand() makes it, in all its parts.
  template <stdlib::size_t Parts>
  GIWA_HOST_DEVICE void clear(uint32 (&operand)[Parts][stdlib::size_t{Map::registers} / 2]) const {
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; i += 2) {
      const uint32 mask = arch::halves_of_signs(shifted(i), shifted(i + 1), bit_of(i) / 8, bit_of(i + 1) / 8);
      GIWA_UNROLL
      for (stdlib::size_t part = 0; part < Parts; ++part) operand[part][i / 2] &= mask;
    }
  }

 private:
  static constexpr int squares_of_rows = Map::period / 8;  // in 16 rows
  static constexpr int words_of_rows = (squares_of_rows + 3) / 4, words = Map::rows / 2 * words_of_rows;
  // The lanes that share groups differ in two bits, and the bits of dropout_bits::bit that the exchanges replace by the number
  // of the square are the same bits of the query and the key.
  static constexpr int upper_lane = RowsAreKeys ? 1 : 8, odd_lane = 4;
  static constexpr int upper_bit = 4, odd_bit = RowsAreKeys ? 0 : 3;

  /// Exchanges the half of a word's bits whose numbers have another value of bit `Bit` than `upper`, with the thread whose
  /// `upper` is another one.
  template <int Bit, class Block>
  GIWA_HOST_DEVICE static uint32 exchange(const Block& block, uint32 word, bool upper, int lane) {
    constexpr uint32 of_lower = Bit == 4 ? 0x0000ffffu : Bit == 3 ? 0x00ff00ffu : 0x55555555u;
    const uint32 other = block.shuffle_xor(word, lane), own = upper ? ~of_lower : of_lower;
    const uint32 left = upper ? 32u - (1u << Bit) : 1u << Bit;
    return (word & own) | ((other << left | other >> (32 - left)) & ~own);
  }
  GIWA_HOST_DEVICE static constexpr int word_of(int i) {
    return i / Map::period * words_of_rows + i % Map::period / 32;
  }
  /// Bit 0 of i is that of the column, bit 1 is bit 3 of the row, and bit 2 is bit 3 of the column.
  GIWA_HOST_DEVICE static constexpr int bit_of(int i) {
    const int square = i % Map::period / 8 % 4;
    if (!RowsAreKeys) return 8 * square + i % 8;
    return (square >> 1) << 4 | (i & 1) << 3 | (i & 2) << 1 | (i & 4) >> 1 | (square & 1);
  }
  /// The word of a register's bit, which is moved to the sign of its byte.
  GIWA_HOST_DEVICE uint32 shifted(int i) const { return kept_[word_of(i)] << (7 - bit_of(i) % 8); }

  uint32 kept_[stdlib::size_t{words}];
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
