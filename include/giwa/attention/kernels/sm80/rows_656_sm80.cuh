// SPDX-License-Identifier: MIT
// Loads rows of 656 bytes as tiles of 16-bit numbers.
#ifndef GIWA_ATTENTION_KERNELS_SM80_ROWS_656_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_ROWS_656_SM80_CUH

#include <giwa/arch/convert_fp8.cuh>
#include <giwa/attention/problem/rows_656.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Writes 16 numbers of e4m3, times their scale, from a column on. `swaps`: the second half first, so that the lanes of a row write to
/// all banks of shared memory.
template <class T, class Tile>
GIWA_DEVICE void store_codes(const uint4& codes, float scale, int row, int column, bool swaps, Tile& to) {
  const uint32 fours[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32 words[2][4];
  GIWA_UNROLL
  for (int i = 0; i < 4; ++i) {
    uint32 pairs[2];
    arch::e4m3_to_fp16(fours[i], pairs);
    GIWA_UNROLL
    for (int j = 0; j < 2; ++j) {
      packed_pair<fp16>::type exact;
      __builtin_memcpy(&exact, &pairs[j], 4);
      const auto two = pack<T>(__low2float(exact) * scale, __high2float(exact) * scale);
      __builtin_memcpy(&words[i / 2][i % 2 * 2 + j], &two, 4);
    }
  }
  GIWA_UNROLL
  for (int h = 0; h < 2; ++h) {
    const auto word = [&](int i) { return swaps ? words[1 - h][i] : words[h][i]; };
    *reinterpret_cast<uint4*>(to.chunk(row, column + (swaps ? 8 - 8 * h : 8 * h))) = {word(0), word(1), word(2),
                                                                                      word(3)};
  }
}

/// Reads 16 bytes of a row, zeros without one.
GIWA_DEVICE inline uint4 read_row_656(const rows_656* row, int first) {
  return row == nullptr ? uint4{} : *reinterpret_cast<const uint4*>(row + first);
}

/// A warp loads `Count` rows, of which lane i knows row i, or null for zeros, and writes them to the rows from `first_row` on of a tile
/// of T. 8 lanes have a row: of each scale 16 numbers a lane, and 8 of bf16. What comes next is loaded where registers are free.
template <int Count, class Block, class Tile>
GIWA_DEVICE void copy_rows_656(const Block& block, const rows_656* row_of_lane, int first_row, Tile& to) {
  using T = stdlib::remove_cvref_t<decltype(to(0, 0))>;
  using rows = rows_656;
  constexpr int at_once = 4, scales = rows::codes / rows::group;
  const int part = block.lane() % 8, of_pass = block.lane() / 8;
  const auto row_at = [&](int first) {
    return reinterpret_cast<const rows*>(block.shuffle(reinterpret_cast<uint64>(row_of_lane), first + of_pass));
  };
  uint4 codes[scales], rest, scale;
  const rows* from = row_at(0);
  scale = read_row_656(from, rows::scales_at);
  GIWA_UNROLL
  for (int i = 0; i < scales; ++i) codes[i] = read_row_656(from, rows::group * i + 16 * part);
  rest = read_row_656(from, rows::rest_at + 16 * part);
#pragma unroll 1
  for (int first = 0; first < Count; first += at_once) {
    const bool goes_on = first + at_once < Count;
    const int row = first_row + first + of_pass;
    const uint32 bits[scales] = {scale.x, scale.y, scale.z, scale.w};
    if (goes_on) from = row_at(first + at_once), scale = read_row_656(from, rows::scales_at);
    GIWA_UNROLL
    for (int i = 0; i < scales; ++i) {
      store_codes<T>(codes[i], __uint_as_float(bits[i]), row, rows::group * i + 16 * part, part >= 4, to);
      if (goes_on) codes[i] = read_row_656(from, rows::group * i + 16 * part);
    }
    uint32 words[4] = {rest.x, rest.y, rest.z, rest.w};
    if constexpr (!stdlib::same_as<T, bf16>) {
      GIWA_UNROLL
      for (uint32& word : words) {
        const auto two = pack<T>(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
        __builtin_memcpy(&word, &two, 4);
      }
    }
    *reinterpret_cast<uint4*>(to.chunk(row, rows::codes + 8 * part)) = {words[0], words[1], words[2], words[3]};
    if (goes_on) rest = read_row_656(from, rows::rest_at + 16 * part);
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
