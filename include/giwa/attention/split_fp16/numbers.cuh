// SPDX-License-Identifier: MIT
// What every place that splits fp32 numbers does: reads a row, compares magnitudes by their bits, makes an accumulator an operand.
#ifndef GIWA_ATTENTION_SPLIT_FP16_NUMBERS_CUH
#define GIWA_ATTENTION_SPLIT_FP16_NUMBERS_CUH

#include <giwa/base/macros.hpp>
#include <giwa/base/std.hpp>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A warp takes a row; each lane has pairs of columns: 2 lane and 2 lane + 1 of each 64.
struct split_numbers {
  /// Reads a lane's pairs of a row of `width` columns; columns past the end are read as 0. `aligned`: pairs are aligned to 8 bytes,
  /// and the width is even.
  template <int Pairs>
  GIWA_DEVICE static void read_row(int lane, const float* row, int width, bool aligned, float2 (&x)[Pairs]) {
    GIWA_UNROLL
    for (int k = 0; k < Pairs; ++k) {
      const int column = 64 * k + 2 * lane;
      x[k] = {0.f, 0.f};
      if (column >= width) continue;
      if (aligned)
        x[k] = *reinterpret_cast<const float2*>(row + column);
      else
        x[k] = {row[column], column + 1 < width ? row[column + 1] : 0.f};
    }
  }

  /// The bits of a magnitude, which are in its order: those of infinity and NaN are the largest.
  GIWA_DEVICE static uint32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
  GIWA_DEVICE static uint32 larger_of(uint32 a, uint32 b) { return a > b ? a : b; }
  template <int Pairs>
  GIWA_DEVICE static uint32 largest_of(const float2 (&x)[Pairs]) {
    uint32 largest = 0;
    GIWA_UNROLL
    for (int k = 0; k < Pairs; ++k) largest = larger_of(largest, larger_of(magnitude(x[k].x), magnitude(x[k].y)));
    return largest;
  }
};

/// Which groups of rows split fp16 represents, by the bits of their largest magnitude (split_pass.cuh).
struct split_range {
  static constexpr int reach = 14, least_exponent = -40, most_exponent = 25;
  static constexpr uint32 least = static_cast<uint32>(127 + least_exponent) << 23,
                          most = static_cast<uint32>(127 + most_exponent) << 23;

  uint32 largest;

  /// Infinity and NaN are above `most`.
  GIWA_DEVICE bool contains_group() const { return largest == 0 || (largest >= least && largest < most); }
  /// Whether a row, or a column of v, has a largest magnitude that is too small next to the group's.
  GIWA_DEVICE bool is_beyond(uint32 of_row) const {
    const uint32 reached = largest < least ? 0 : largest - (static_cast<uint32>(reach) << 23);
    return of_row != 0 && of_row < reached;
  }
};

/// An accumulator as the left operand of the next product: hi parts, and lo parts if there are two. Each row is divided
/// by a power of two so that its largest number comes to [2^14, 2^15), where split() loses least: dS may have any
/// magnitude. The product's row is multiplied by `factor`: that power of two, and 1 + 2^-22, because tensor cores
/// truncate where they add, and the gradients of attention came out 1.5e-7 to 3.6e-7 too small (head sizes 64 and 128,
/// 512 to 16384 tokens; H200, 2026-11-23).
template <class Map, int Parts>
struct split_operand {
  uint32 parts[Parts][stdlib::size_t{Map::registers / 2}];
  float factor[Map::rows];

  /// All threads of the warpgroup call it. A row with NaN or infinity stays so.
  template <class Block>
  GIWA_DEVICE void set(const Block& block, const register_tile<float, Map>& from) {
    float largest[Map::rows] = {}, to[Map::rows];
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; ++i) {
      float& of_row = largest[Map::slot(i)];
      of_row = larger_of(of_row, fabsf(from.value[i]));
    }
    reduce_over_lanes<Map>(block, largest, larger{});
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) {
      constexpr uint32 one = 1u << 23;  // in the exponent
      uint32 exponent = __float_as_uint(largest[r]) & 0x7f800000u;
      exponent = exponent > 15 * one ? exponent : 15 * one;
      factor[r] = __uint_as_float(exponent - 14 * one + 2);
      to[r] = __uint_as_float(268 * one - exponent);
    }
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; i += 2) {
      const float scale = to[Map::slot(i)], first = from.value[i] * scale, second = from.value[i + 1] * scale;
      if constexpr (Parts == 1) {
        parts[0][i / 2] = packed_word<fp16>(first, second);
      } else {
        const split_fp16_pair two = split(first, second);
        __builtin_memcpy(&parts[0][i / 2], &two.hi, 4);
        __builtin_memcpy(&parts[1][i / 2], &two.lo, 4);
      }
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
