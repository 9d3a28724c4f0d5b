// SPDX-License-Identifier: MIT
// Which tile an attention kernel works with, by precision and head size: every number with what it was measured at.
#ifndef GIWA_ATTENTION_FORWARD_POLICY_HPP
#define GIWA_ATTENTION_FORWARD_POLICY_HPP

#include <giwa/numeric/integer.hpp>
#include <giwa/tile/shape.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A kernel of mma.sync: `rows` queries and `columns` keys at once, by so many warps that each have rows / warps queries. The
/// head sizes are rounded up to whole fragments; an output wider than 256 is made in slices.
template <int BlockM, int BlockN, int Warps, int HeadSize, int HeadSizeV, int MinBlocks, int Parts = 1>
struct sm80_policy {
  static constexpr int block_m = BlockM, block_n = BlockN, warps = Warps, min_blocks = MinBlocks, parts = Parts;
  static constexpr int head_size = round_up(HeadSize, 16), head_size_v = round_up(HeadSizeV, 16);
  static constexpr int slices = ceil_div(head_size_v, 256);
  static constexpr int slice = round_up(ceil_div(head_size_v, slices), 16);  // columns of the output in a block
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
  using smaller = type;  // what the caller asks for, or a reason why not
};
// H200, 2026-11-21, fp16, 2048 / head size heads, TFLOP/s at 4 x 4096 tokens full | 16 x 1024 causal. As it is, in CUDA graphs
// (docs/results): 64: 279 | 188, 128: 307 | 202, 256: 253 | 187. What chose the tiles are earlier states of the kernel, by
// themselves in a loop:
//   64    128 x 128, 4 warps  288-298 | 181-191    (128 x 96 274 | 161; 128 x 64, three blocks a multiprocessor, 265 | 177)
//   128   128 x 64, 4 warps   315-335 | 202-216    (128 x 32 260 | 171, 64 x 64 265 | 196)
//   256   64 x 64, 4 warps    267-280 | 188-198    (128 x 64 with 8 warps 243 | 165, 64 x 32 246 | 175)
// Up to 128, 192 of a thread's 255 registers are sums, and ptxas keeps 12 to 28 bytes elsewhere where the mask is full or causal,
// up to 500 where it is one's own: 136 cost 128, full, a tenth of its speed. Tried: a vote that
// leaves out multiplications by 1 where no maximum changes, 64: 293 to 288, 128: 335 to 326; keys asked for where the scores are
// gone, 64: 297 to 273; a mask's answers as bits before the scores, 128 causal: 216 to 204.
template <int HeadSize, int HeadSizeV, class Automatic>
struct sm80_policy_of {
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest <= 64), sm80_policy<128, 128, 4, HeadSize, HeadSizeV, 2>,
      stdlib::conditional_t<(widest <= 128), sm80_policy<128, 64, 4, HeadSize, HeadSizeV, 2>,
      stdlib::conditional_t<(widest <= 256), sm80_policy<64, 64, 4, HeadSize, HeadSizeV, 2>,
                            sm80_policy<64, 32, 4, HeadSize, HeadSizeV, 1>>>>;
  // What GPUs with 99 KB of shared memory a block take (8.6, 8.9, 12.0), where they cannot take the other. Not run on one yet.
  using smaller =
      stdlib::conditional_t<(widest > 256), sm80_policy<64, 16, 4, HeadSize, HeadSizeV, 1>,
      stdlib::conditional_t<(widest > 240), sm80_policy<64, 48, 4, HeadSize, HeadSizeV, 1>, type>>;
  // clang-format on
};

/// The same for fp32 in two parts, up to a head size of 256: as many keys as let two blocks share a multiprocessor with 164 KB,
/// at 256 one. Compiled in CI, not run yet on a GPU that has nothing else. Above 240 a block needs more than 99 KB.
template <int HeadSize, int HeadSizeV>
struct sm80_split_policy_of {
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  template <int BlockN, int MinBlocks>
  using tile = sm80_policy<64, BlockN, 4, HeadSize, HeadSizeV, MinBlocks, 2>;
  using type = stdlib::conditional_t<(widest <= 64), tile<64, 2>,
                                     stdlib::conditional_t<(widest <= 128), tile<32, 2>, tile<16, 1>>>;
};

/// A kernel of wgmma: warpgroups of 64 queries each, `columns` keys at once, and one warpgroup more that loads. The head sizes are
/// rounded up to what an instruction takes; in shared memory they take whole slabs of 64. An element comes in `Parts` (split_fp16/layout.hpp).
template <int BlockM, int BlockN, int HeadSize, int HeadSizeV, int Parts = 1, int Stages = 2>
struct sm90_policy {
  static_assert(BlockM == 64 || BlockM == 128 || BlockM == 192,
                "giwa::attention_forward: on Hopper a tile has 64, 128 or 192 queries.");
  static_assert(BlockN % 16 == 0 && BlockN >= 16 && BlockN <= 256,
                "giwa::attention_forward: on Hopper a tile has a multiple of 16 keys, up to 256.");
  static constexpr int block_m = BlockM, block_n = BlockN, consumers = BlockM / 64, stages = Stages, parts = Parts;
  // Where elements come in two parts, the products of a tile are summed up apart, so many columns of the output at once.
  static constexpr bool slices_output = Parts == 2 && HeadSizeV > 128;
  static constexpr int head_size = round_up(HeadSize, 16), head_size_v = round_up(HeadSizeV, slices_output ? 64 : 16);
  static constexpr int slice = slices_output ? 64 : head_size_v;
  static constexpr bool uses_pingpong = !slices_output;  // 256 in parts: 154 TFLOP/s without, 131 with
  // All of a multiprocessor's registers: the loader's are few, and the others may have 232 or 160 for it. One warpgroup beside
  // the loader has enough.
  static constexpr bool moves_registers = consumers > 1;
  static constexpr int producer_registers = consumers == 3 ? 32 : 40, consumer_registers = consumers == 3 ? 160 : 232;
  // Whether a warpgroup's softmax runs beside its own product, and not only beside those of the others. H200, 2026-11-21, 4096
  // tokens, full, TFLOP/s: 64 471 against 512, 128 591 against 639, 256 705 against 678.
  static constexpr bool overlaps = Parts == 1 && HeadSizeV > 128;

  // Scores, weights and sums of a thread, and what the tiles take of shared memory.
  static constexpr int live_registers =
      block_n / 2 + parts * block_n / 4 + head_size_v / 2 + (parts == 1 ? 0 : slice / 2);
  static constexpr int bytes =
      2 * parts *
      (block_m * round_up(head_size, 64) + stages * block_n * (round_up(head_size, 64) + round_up(head_size_v, 64)));
  static constexpr int most_bytes = (227 << 10) - 3072;
  static constexpr bool fits = live_registers <= consumer_registers - (parts == 2 ? 24 : 32) && bytes <= most_bytes;
  // Whether the output has room of its own, from which TMA stores it; else it goes there from registers.
  static constexpr bool stages_output = bytes + 2 * block_m * head_size_v <= most_bytes - 1024;
};

// H200, 2026-11-21, fp16, 16384 tokens, 2048 / head size heads, TFLOP/s:
//   64    192 x 128  full 4096 457, causal 1024 240    (128 x 128 387 | 271, 128 x 176 391 | 244)
//   128   128 x 128  full 1024 517, 4096 556, 16384 586    (128 x 176 479 | 544 | 593)
//   256   128 x 80, as many keys as fit
// These chose the tiles; the kernel is faster since: docs/results, docs/attention_hopper.md. Without turns at the tensor cores
// 64 full 4096 has 428 of 457, 128 504 of 544.
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

/// The same for fp32 in two parts. H200, 2026-11-22, 16384 tokens in sequences of 4096, 2048 / head size heads, TFLOP/s of the kernel
/// itself, full | causal:
///   64    192 x 64  206 | 187    (128 x 128 222 | 211, but sums of 128 keys are cut twice as often: 2.4 times the error where all
///                                 values have one sign; 128 x 64 177 | 177)
///   128   128 x 64  235 | 221    (without turns 234 | 204)
///   192   128 x 64, one stage  193 | 202    (128 x 32 176 | 174)
///   256   128 x 48, one stage  177 | 170    (128 x 32 154 | 145)
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

/// The shared memory of a block on the GPUs of capability 8.0 and newer that have least of it.
inline constexpr int least_shared_bytes = 99 << 10;

}  // namespace giwa::inline GIWA_ABI::detail

#endif
