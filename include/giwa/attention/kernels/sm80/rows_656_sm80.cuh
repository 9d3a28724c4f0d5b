// SPDX-License-Identifier: MIT
// Loads rows of 656 bytes as tiles of 16-bit numbers.
#ifndef GIWA_ATTENTION_KERNELS_SM80_ROWS_656_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_ROWS_656_SM80_CUH

#include <giwa/arch/convert_fp8.cuh>
#include <giwa/attention/problem/rows_656.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// What one of 8 lanes loads of a row: 16 numbers of each scale, and 8 of bf16.
struct part_of_row_656 {
  uint4 codes[4], rest;
  float scales[4];
};

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
    *reinterpret_cast<uint4*>(to.chunk(row, column + (swaps ? 8 - 8 * h : 8 * h))) = {word(0), word(1), word(2), word(3)};
  }
}

/// A warp loads `Count` rows, of which lane i knows row i, or null for zeros, and writes them to the rows from `first_row` on of a tile
/// of T. The loads of rows overlap the conversion of those before.
template <int Count, class Block, class Tile>
GIWA_DEVICE void copy_rows_656(const Block& block, const rows_656* row_of_lane, int first_row, Tile& to) {
  using T = stdlib::remove_cvref_t<decltype(to(0, 0))>;
  constexpr int at_once = 4;
  const int part = block.lane() % 8;
  const auto load = [&](int first, part_of_row_656& x) {
    x = {};
    const auto* const row = reinterpret_cast<const rows_656*>(
        block.shuffle(reinterpret_cast<uint64>(row_of_lane), first + block.lane() / 8));
    if (row == nullptr) return;
    const float4 scales = *reinterpret_cast<const float4*>(row + rows_656::scales_at);
    x.scales[0] = scales.x, x.scales[1] = scales.y, x.scales[2] = scales.z, x.scales[3] = scales.w;
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i)
      x.codes[i] = *reinterpret_cast<const uint4*>(row + rows_656::group * i + 16 * part);
    x.rest = *reinterpret_cast<const uint4*>(row + rows_656::rest_at + 16 * part);
  };
  part_of_row_656 next;
  load(0, next);
  GIWA_UNROLL
  for (int first = 0; first < Count; first += at_once) {
    const part_of_row_656 x = next;
    if (first + at_once < Count) load(first + at_once, next);
    const int row = first_row + first + block.lane() / 8;
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i)
      store_codes<T>(x.codes[i], x.scales[i], row, rows_656::group * i + 16 * part, part >= 4, to);
    uint32 words[4] = {x.rest.x, x.rest.y, x.rest.z, x.rest.w};
    if constexpr (!stdlib::same_as<T, bf16>) {
      GIWA_UNROLL
      for (uint32& word : words) {
        const auto two = pack<T>(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
        __builtin_memcpy(&word, &two, 4);
      }
    }
    *reinterpret_cast<uint4*>(to.chunk(row, rows_656::codes + 8 * part)) = {words[0], words[1], words[2], words[3]};
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
