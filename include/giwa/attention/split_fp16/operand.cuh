// SPDX-License-Identifier: MIT
// Split fp16 as the left operand of a product, from an accumulator of any magnitude.
#ifndef GIWA_ATTENTION_SPLIT_FP16_OPERAND_CUH
#define GIWA_ATTENTION_SPLIT_FP16_OPERAND_CUH

#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

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
