// SPDX-License-Identifier: MIT
// What every place that splits fp32 numbers does with a row: reads it, and compares magnitudes by their bits.
#ifndef GIWA_ATTENTION_SPLIT_FP16_NUMBERS_CUH
#define GIWA_ATTENTION_SPLIT_FP16_NUMBERS_CUH

#include <giwa/base/macros.hpp>
#include <giwa/base/std.hpp>

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

}  // namespace giwa::inline GIWA_ABI::detail

#endif
