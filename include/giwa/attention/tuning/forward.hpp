// SPDX-License-Identifier: MIT
// The tile of each attention kernel by precision and head size. A tuning constant carries its measurement.
#ifndef GIWA_ATTENTION_TUNING_FORWARD_HPP
#define GIWA_ATTENTION_TUNING_FORWARD_HPP

#include <giwa/numeric/integer.hpp>
#include <giwa/tile/shape.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The tile of the mma.sync kernel: block_m queries and block_n keys, and `Warps` warps with block_m / Warps queries
/// each. Head sizes are rounded up to whole fragments. An output wider than 256 is computed in slices of columns.
template <int BlockM, int BlockN, int Warps, int HeadSize, int HeadSizeV, int MinBlocks, int Parts = 1>
struct sm80_policy {
  static constexpr int block_m = BlockM, block_n = BlockN, warps = Warps, min_blocks = MinBlocks, parts = Parts;
  static constexpr int head_size = round_up(HeadSize, 16), head_size_v = round_up(HeadSizeV, 16);
  static constexpr int slices = ceil_div(head_size_v, 256);
  static constexpr int slice = round_up(ceil_div(head_size_v, slices), 16);  // columns of the output per block
  // Of online_softmax, in fp16 and bf16. H200, 2026-11-27, compared with 0, geometric means of 512 to 16384 tokens: 64 1.03, 128 1.05
  // times as fast, 256 0.995, where the multiplications of O run between the products.
  static constexpr int slack = slice <= 128 ? 6 : 0;
  static_assert(BlockM % (16 * Warps) == 0,
                "giwa::attention_forward: a tile's queries are a multiple of 16 for each warp.");
  static_assert(BlockN % 16 == 0, "giwa::attention_forward: a tile's keys are a multiple of 16.");
};

template <int HeadSize, int HeadSizeV, class Tile>
struct sm80_policy_of;
template <int HeadSize, int HeadSizeV, int BlockM, int BlockN>
struct sm80_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>> {
  static_assert(BlockM % 64 == 0 && BlockN % 16 == 0,
                "giwa::attention_forward: a tile has a multiple of 64 queries, and of 16 keys.");
  static constexpr int warps = BlockM >= 256 && BlockM % 128 == 0 ? 8 : 4;
  using type = sm80_policy<BlockM, BlockN, warps, HeadSize, HeadSizeV, 1>;
  using smaller = type;  // the caller's tile, or an error that it does not fit
};
// H100, 2026-11-27, fp16, 2048 / head size heads, full 4 x 4096 | causal 16 x 1024 tokens, in CUDA graphs
// (docs/results):
//   head size   queries x keys   warps   blocks per multiprocessor   TFLOP/s
//   64          128 x 128        4       2                           304 | 213
//   128         128 x 64         4       2                           328 | 231
//   256         64 x 64          4       2                           286 | 221
// Up to a head size of 128, S and O take 192 of a thread's 255 registers. ptxas spills up to 150 bytes if the mask
// is full or causal (a dozen accesses in the loop), and up to 500 bytes if it is a custom mask. Other tiles:
// docs/attention_hopper.md.
template <int HeadSize, int HeadSizeV, class Automatic>
struct sm80_policy_of {
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest <= 64), sm80_policy<128, 128, 4, HeadSize, HeadSizeV, 2>,
      stdlib::conditional_t<(widest <= 128), sm80_policy<128, 64, 4, HeadSize, HeadSizeV, 2>,
      stdlib::conditional_t<(widest <= 256), sm80_policy<64, 64, 4, HeadSize, HeadSizeV, 2>,
                            sm80_policy<64, 32, 4, HeadSize, HeadSizeV, 1>>>>;
  // The tiles for GPUs with 99 KB of shared memory per block (8.6, 8.9, 12.0). Not run on such a GPU yet.
  using smaller =
      stdlib::conditional_t<(widest > 256), sm80_policy<64, 16, 4, HeadSize, HeadSizeV, 1>,
      stdlib::conditional_t<(widest > 240), sm80_policy<64, 48, 4, HeadSize, HeadSizeV, 1>, type>>;
  // clang-format on
};

/// The tile for split fp16, up to a head size of 256: the most keys with which two blocks share a multiprocessor with
/// 164 KB, at 256 one block. Compiled in CI, not run yet on a GPU that has only this kernel. Above 240 a block needs
/// more than 99 KB.
template <int HeadSize, int HeadSizeV>
struct sm80_split_policy_of {
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  template <int BlockN, int MinBlocks>
  using tile = sm80_policy<64, BlockN, 4, HeadSize, HeadSizeV, MinBlocks, 2>;
  using type = stdlib::conditional_t<(widest <= 64), tile<64, 2>,
                                     stdlib::conditional_t<(widest <= 128), tile<32, 2>, tile<16, 1>>>;
};

/// The tile of the wgmma kernel: consumer warpgroups of 64 queries each, block_n keys, and one producer warpgroup. Head
/// sizes are rounded up to what an instruction takes; in shared memory they take whole slabs of 64 columns. An element
/// has `Parts` parts (split_fp16/layout.hpp).
template <int BlockM, int BlockN, int HeadSize, int HeadSizeV, int Parts = 1, int Stages = 2, bool TakesTurns = true>
struct sm90_policy {
  static_assert(BlockM == 64 || BlockM == 128 || BlockM == 192,
                "giwa::attention_forward: on Hopper a tile has 64, 128 or 192 queries.");
  static_assert(BlockN % 16 == 0 && BlockN >= 16 && BlockN <= 256,
                "giwa::attention_forward: on Hopper a tile has a multiple of 16 keys, up to 256.");
  static constexpr int block_m = BlockM, block_n = BlockN, consumers = BlockM / 64, stages = Stages, parts = Parts;
  // With two parts, the products of a tile go to separate accumulators (partial O). Above 128 columns there are too few
  // registers for all of them, so the tile's products are computed in slices of 64 columns.
  static constexpr bool slices_output = Parts == 2 && HeadSizeV > 128;
  static constexpr int head_size = round_up(HeadSize, 16), head_size_v = round_up(HeadSizeV, slices_output ? 64 : 16);
  static constexpr int slice = slices_output ? 64 : head_size_v;
  static constexpr bool uses_pingpong = TakesTurns && !slices_output;  // 256, two parts: 154 TFLOP/s without, 131 with
  // A block takes all registers of a multiprocessor. The producer needs few, so a consumer thread gets 232, or 160 with
  // three consumers. A single consumer has enough without moving registers.
  static constexpr bool moves_registers = consumers > 1;
  static constexpr int producer_registers = consumers == 3 ? 32 : 40, consumer_registers = consumers == 3 ? 160 : 232;
  // Whether the softmax of a warpgroup overlaps its own O += P V, and not only the products of the others. Up to 128
  // columns the overlap costs speed. 256: 705 TFLOP/s, 678 without (H200, 2026-11-21, fp16, full, 4096 tokens).
  static constexpr bool overlaps = Parts == 1 && HeadSizeV > 128;
  // Of online_softmax, in fp16 and bf16. A thread has 32 to 44 weights of a row. Where all scores are equal each is 1, and their sum
  // must not exceed 2^slack. By a simulation of the rounding to fp16, 2^4 costs 1.4 % of accuracy at most, and 2^6 2.7 %.
  static constexpr int slack = 6;

  // Accumulators and operands of a thread: S, P, O and the partial O. Then the bytes of the tiles in shared memory.
  static constexpr int live_registers =
      block_n / 2 + parts * block_n / 4 + head_size_v / 2 + (parts == 1 ? 0 : slice / 2);
  static constexpr int bytes =
      2 * parts *
      (block_m * round_up(head_size, 64) + stages * block_n * (round_up(head_size, 64) + round_up(head_size_v, 64)));
  static constexpr int most_bytes = (227 << 10) - 3072;
  static constexpr bool fits = live_registers <= consumer_registers - (parts == 2 ? 24 : 32) && bytes <= most_bytes;
  // Whether shared memory has room for a separate output tile, from which TMA stores it. Otherwise it is stored from
  // registers.
  static constexpr bool stages_output = bytes + 2 * block_m * head_size_v <= most_bytes - 1024;
};

// H200, 2026-11-21, fp16, 2048 / head size heads, full 4 x 4096 | causal 16 x 1024 tokens, in CUDA graphs
// (docs/results):
//   head size   queries x keys   stages   TFLOP/s
//   64          192 x 128        2        466 | 300
//   128         128 x 128        2        601 | 430
//   256         128 x 80         2        706 | 418    (the most keys that fit)
// Other tiles: docs/attention_hopper.md.
template <int HeadSize, int HeadSizeV, class Tile>
struct sm90_policy_of {
  template <int BlockM, int BlockN>
  using tile = sm90_policy<BlockM, BlockN, HeadSize, HeadSizeV>;
  template <int BlockN>
  using or_fewer = stdlib::conditional_t<
      tile<128, BlockN>::fits, tile<128, BlockN>,
      stdlib::conditional_t<tile<128, BlockN - 16>::fits, tile<128, BlockN - 16>, tile<128, BlockN - 32>>>;
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest <= 64), tile<192, 128>,
      stdlib::conditional_t<(widest <= 128), tile<128, 128>,
      stdlib::conditional_t<(widest <= 192), or_fewer<128>, or_fewer<96>>>>;
  // clang-format on
};
template <int HeadSize, int HeadSizeV, int BlockM, int BlockN>
struct sm90_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>> {
  using type = sm90_policy<BlockM, BlockN, HeadSize, HeadSizeV>;
};

/// The tile of calls with a mask. Up to a head size of 64 the consumers of a tile end at different keys under a causal
/// mask, and each goes on by itself: four stages, no turns of the tensor cores. H200, 2026-11-24, fp16, causal,
/// together with the last section of attention_schedule: 512 to 4096 tokens 1.04 to 1.06 of two stages with turns, 16384 1.01.
template <int HeadSize, int HeadSizeV, class Tile>
struct sm90_masked_policy_of : sm90_policy_of<HeadSize, HeadSizeV, Tile> {};
template <int HeadSize, int HeadSizeV, class Tile>
  requires(HeadSize <= 64 && HeadSizeV <= 64)
struct sm90_masked_policy_of<HeadSize, HeadSizeV, Tile> {
  using type = sm90_policy<192, 128, HeadSize, HeadSizeV, 1, 4, false>;
};
template <int HeadSize, int HeadSizeV, int BlockM, int BlockN>
struct sm90_masked_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>>
    : sm90_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>> {};

/// The tile of calls with such a number of keys (has_second_tile). H200, fp16, alternating with the tile of other calls:
///   head size   queries x keys   keys
///   128         128 x 176        from 8192: full 1.035, causal 1.025; 16384: 1.04; 4096: 1.01, 1.00 (2026-11-23)
///   256         128 x 64         257 to 512: at 512 full 1.01, causal 1.05; 1024: 0.96, 1.01 (2026-11-27)
template <int HeadSize, int HeadSizeV>
struct sm90_second_policy_of {
  static constexpr bool is_128 = round_up(HeadSize, 16) == 128 && round_up(HeadSizeV, 16) == 128;
  static constexpr bool exists = is_128 || (round_up(HeadSize, 16) == 256 && round_up(HeadSizeV, 16) == 256);
  using type = sm90_policy<128, is_128 ? 176 : 64, HeadSize, HeadSizeV>;

  GIWA_HOST_DEVICE static constexpr bool suits(int64 keys) { return is_128 ? keys >= 8192 : keys > 256 && keys <= 512; }
};

/// The tile for split fp16. H200, 2026-11-22, 2048 / head size heads, 4 x 4096 tokens, full | causal, the kernel
/// without the split pass:
///   head size   queries x keys   stages   TFLOP/s
///   64          192 x 64         2        206 | 187
///   128         128 x 64         2        235 | 221
///   192         128 x 64         1        193 | 202
///   256         128 x 48         1        177 | 170
/// Other tiles: docs/attention_hopper.md.
template <int HeadSize, int HeadSizeV, class Tile>
struct sm90_split_policy_of {
  template <int BlockM, int BlockN, int Stages = 2>
  using tile = sm90_policy<BlockM, BlockN, HeadSize, HeadSizeV, 2, Stages>;
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest <= 64), tile<192, 64>,
      stdlib::conditional_t<(widest <= 128), tile<128, 64>,
      stdlib::conditional_t<(widest <= 192), tile<128, 64, 1>, tile<128, 48, 1>>>>;
  // clang-format on
};
template <int HeadSize, int HeadSizeV, int BlockM, int BlockN>
struct sm90_split_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>> {
  using type = sm90_policy<BlockM, BlockN, HeadSize, HeadSizeV, 2>;
};

/// The shared memory of a block on those GPUs of capability 8.0 and newer that have the least.
inline constexpr int least_shared_bytes = 99 << 10;

}  // namespace giwa::inline GIWA_ABI::detail

#endif
