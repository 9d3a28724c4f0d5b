// SPDX-License-Identifier: MIT
// Tiles of the Hopper kernel of attention for 8-bit inputs.
#ifndef GIWA_ATTENTION_TUNING_SM90_BYTES_HPP
#define GIWA_ATTENTION_TUNING_SM90_BYTES_HPP

#include <giwa/base/std.hpp>
#include <giwa/numeric/integer.hpp>
#include <giwa/tile/shape.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The tile of the wgmma kernel for e4m3, whose V the producer transposes, or the caller has (KMajorV). Rows take whole slabs of 128
/// bytes in shared memory.
template <int BlockM, int BlockN, int HeadSize, int HeadSizeV, bool KMajorV>
struct sm90_bytes_policy {
  static_assert(BlockM == 64 || BlockM == 128 || BlockM == 192,
                "giwa::attention_forward: on Hopper a tile has 64, 128 or 192 queries.");
  static_assert(BlockN % 32 == 0 && BlockN >= 32 && BlockN <= 256,
                "giwa::attention_forward: on Hopper a tile of e4m3 has a multiple of 32 keys, up to 256.");
  static constexpr int block_m = BlockM, block_n = BlockN, consumers = BlockM / 64, stages = 2, parts = 1, blocks = 1;
  static constexpr bool k_major_v = KMajorV;
  static constexpr int section_bytes = 24 << 20;  // as sm90_policy::section_bytes; others were not measured
  static constexpr bool narrows = false, slices_output = false, uses_pingpong = true, moves_registers = true,
                        stages_output = false;
  static constexpr int head_size = round_up(HeadSize, 32), head_size_v = round_up(HeadSizeV, 16), slice = head_size_v;
  static constexpr int producer_registers = consumers == 3 ? 32 : 40, consumer_registers = consumers == 3 ? 160 : 232;
  static constexpr bool overlaps = HeadSizeV > 128;
  // Of online_softmax: weights are at most 2^8. The largest of e4m3 is 448.
  static constexpr int slack = 8;
  // Above 128 columns shared memory has no room for the fp32 sums; they are in local memory.
  static constexpr bool sums_in_shared = HeadSizeV <= 128;
  // The tensor cores sum so many keys, about. Error of O over 65536 keys whose values have a mean as large as their deviation (H200,
  // 2026-11-29): 768 0.70 %, 1152 1.15 %, 1536 1.62 %; one sum over all keys 44 % by a simulation of 13 bits. 768 in local memory
  // make 256 slower than 1536, 0.87 to 0.92; 1152 in shared memory make 128 1.026 times as fast, which is not worth the error.
  static constexpr int keys_of_sum = (sums_in_shared ? 768 : 1152) / block_n * block_n;

  static constexpr int live_registers = block_n / 2 + block_n / 8 + head_size_v / 2;
  static constexpr int loaded_tile = block_n * round_up(head_size_v, 128), k_tile = block_n * round_up(head_size, 128);
  static constexpr int v_tile = head_size_v * round_up(block_n, 128);
  static constexpr int bytes_besides =
      block_m * round_up(head_size, 128) + 2 * v_tile + (sums_in_shared ? 4 * block_m * head_size_v : 0);
  static constexpr int most_bytes = (227 << 10) - 6144;
  // K is loaded before V of the tile before, and V takes twice as long until it can be multiplied. Relative to three stages, whose ring
  // takes more instructions than that of a power of two, K-major 4 are 1.05 at 64 and 1.02 at 96 and 128, 2 are 1.03 at 192 and 256;
  // else 4 are 1.034, 1.028 and 0.96, 2 are 1.07 and 1.006 (H200, 2026-11-30, 2048 to 16384 tokens).
  static constexpr int wanted_k_stages = !sums_in_shared ? 2 : KMajorV || HeadSizeV <= 96 ? 4 : 3;
  static constexpr bool k_stages_fit =
      bytes_besides + wanted_k_stages * k_tile + (KMajorV ? 0 : loaded_tile) <= most_bytes;
  static constexpr int k_stages = k_stages_fit ? wanted_k_stages : 2;
  static constexpr int loaded_stages = KMajorV                                                             ? 0
                                       : bytes_besides + k_stages * k_tile + 2 * loaded_tile <= most_bytes ? 2
                                                                                                           : 1;
  static constexpr bool fits = live_registers <= consumer_registers - 32 &&
                               bytes_besides + k_stages * k_tile + loaded_stages * loaded_tile <= most_bytes;
};
template <int HeadSize, int HeadSizeV, class Tile, bool KMajorV>
struct sm90_bytes_policy_of {
  template <int BlockM, int BlockN>
  using tile = sm90_bytes_policy<BlockM, BlockN, HeadSize, HeadSizeV, KMajorV>;
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest <= 96), tile<192, 128>,
      stdlib::conditional_t<(widest <= 128), tile<192, 96>,
      stdlib::conditional_t<(widest <= 192), tile<128, 128>, tile<128, 96>>>>;
  // clang-format on
};
template <int HeadSize, int HeadSizeV, int BlockM, int BlockN, bool KMajorV>
struct sm90_bytes_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>, KMajorV> {
  using type = sm90_bytes_policy<BlockM, BlockN, HeadSize, HeadSizeV, KMajorV>;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
