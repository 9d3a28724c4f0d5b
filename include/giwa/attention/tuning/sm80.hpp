// SPDX-License-Identifier: MIT
// The tiles of the mma.sync kernels of attention, by precision and head size. Each number carries its measurement.
#ifndef GIWA_ATTENTION_TUNING_SM80_HPP
#define GIWA_ATTENTION_TUNING_SM80_HPP

#include <giwa/attention/problem/gradient.hpp>
#include <giwa/base/std.hpp>
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
};
// H100, 2026-11-27, fp16, 2048 / head size heads, full 4 x 4096 | causal 16 x 1024 tokens, in CUDA graphs
// (docs/results):
//   head size   queries x keys   warps   blocks per multiprocessor   TFLOP/s
//   64          128 x 128        4       2                           304 | 213
//   128         128 x 64         4       2                           328 | 231
//   256         64 x 64          4       2                           286 | 221
// Up to a head size of 128, S and O take 192 of a thread's 255 registers. ptxas spills up to 150 bytes if the mask
// is full or causal (a dozen accesses in the loop), and up to 500 bytes if it is a custom mask. Other tiles:
// docs/notes/forward_hopper.md.
template <int HeadSize, int HeadSizeV, class Automatic>
struct sm80_policy_of {
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest <= 64), sm80_policy<128, 128, 4, HeadSize, HeadSizeV, 2>,
      stdlib::conditional_t<(widest <= 128), sm80_policy<128, 64, 4, HeadSize, HeadSizeV, 2>,
      stdlib::conditional_t<(widest <= 256), sm80_policy<64, 64, 4, HeadSize, HeadSizeV, 2>,
                            sm80_policy<64, 32, 4, HeadSize, HeadSizeV, 1>>>>;
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

/// A block has Rows rows of its gradient, and Columns rows of the other side pass by, Stages tiles of them in shared memory.
template <int Rows, int Columns, int Warps, int Stages, int MinBlocks>
struct sm80_backward_tile {
  static constexpr int rows = Rows, columns = Columns, warps = Warps, stages = Stages, min_blocks = MinBlocks;
  static_assert(Rows % (16 * Warps) == 0 && Columns % 16 == 0 && (Stages == 1 || Stages == 2));
};

/// Whether one kernel sums dk and dv: their sums take (HeadSize + HeadSizeV) / 2 registers.
GIWA_HOST_DEVICE constexpr bool sm80_backward_sums_both(int head_size, int head_size_v) {
  return round_up(head_size, 16) + round_up(head_size_v, 16) <= 256;
}

/// The tile by gradient and head size. H200, 2026-11-23, fp16, 2048 / head size heads, 4 x 4096 tokens, causal | full, in
/// TFLOP/s of the kernel's own three products (dq, dk), four (dk with dv) or two (dv):
///   head size   gradient      rows x columns   stages   TFLOP/s     others (causal)
///   64          dq            128 x 64         2        304 | 330   64 x 64: 276, 64 x 128: 255, 128 x 32: 260
///   64          dk with dv    128 x 32         2        276 | 303
///   128         dq            128 x 32         2        315 | 365   64 x 64: 271
///   128         dk with dv    64 x 64          2        281 | 298   64 x 32: 245
///   256         dq            64 x 32          1        236 | 256
///   256         dk            64 x 32          1        232 | 241
///   256         dv            64 x 32          1        201 | 223
/// ptxas spills up to 28 bytes at 64 and 128 (more with the gradient of a bias), where two blocks share a
/// multiprocessor and a thread has 255 registers.
template <gradient Of, int HeadSize, int HeadSizeV>
struct sm80_backward_tile_of {
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  static constexpr bool of_q = Of == gradient::of_q;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest <= 64 && of_q), sm80_backward_tile<128, 64, 4, 2, 2>,
      stdlib::conditional_t<(widest <= 64), sm80_backward_tile<128, 32, 4, 2, 2>,
      stdlib::conditional_t<(widest <= 128 && of_q), sm80_backward_tile<128, 32, 4, 2, 2>,
      stdlib::conditional_t<(widest <= 128), sm80_backward_tile<64, 64, 4, 2, 2>,
                            sm80_backward_tile<64, 32, 4, 1, 2>>>>>;
  // clang-format on
};

/// The tile of the mma.sync kernel of all gradients: a block has `keys`, and tiles of `queries` pass by; head sizes are
/// rounded up to `width`. A warp's sums of dk or dv take 64 to 128 registers, its scores half of them or as many. 128
/// queries as in dq_parts where there are registers for them.
template <int HeadSize, int HeadSizeV>
struct sm80_all_gradients_tile {
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  static constexpr int keys = widest <= 128 ? 128 : 64, queries = widest <= 64 ? 128 : 64;
  static constexpr int width = round_up(widest, 32);
  static_assert(queries == dq_parts::rows_of_tile(HeadSize, HeadSizeV), "dq is summed by tiles of these queries");
};

/// Keys of an 8-bit leaf for each of a 16-bit one, up to the 256 rows of a copy of TMA. With 1, 128 sequences of 8192 keys are
/// read at 3880 instead of 4385 GB/s (H200, 2026-11-23).
inline constexpr int keys_of_8_bits = 2;

/// Keys of a leaf: 32 KB of keys or values at most. It decides the bits, so it depends on head sizes and the element alone.
GIWA_HOST_DEVICE constexpr int leaf_keys_of(int64 head_size, int64 head_size_v, int64 cache_bytes) {
  const int64 wider = head_size > head_size_v ? head_size : head_size_v;
  const int keys = wider <= 64 ? 256 : wider <= 128 ? 128 : wider <= 256 ? 64 : 32;
  return cache_bytes == 1 && keys < 256 ? keys_of_8_bits * keys : keys;
}

/// Latent rows: head size 576, whose first 512 columns are v. Keys of a leaf of the Hopper kernel for them: the rows of one wgmma.
///@{
inline constexpr int latent_head_size = 576, latent_head_size_v = 512, latent_leaf_keys = 64, latent_rows = 16;
/// The same of the kernel for sequences with more packed rows than latent_few_rows, in tiles of 64.
inline constexpr int latent_wide_leaf_keys = 2048, latent_wide_rows = 64, latent_few_rows = 32;
/// What the end of a leaf costs there, and the launch that merges partials, in keys of a tile.
inline constexpr int latent_leaf_end_keys = 192, latent_merge_keys = 256;
GIWA_HOST_DEVICE constexpr bool may_be_latent(int64 head_size, int64 head_size_v) {
  return head_size == latent_head_size && head_size_v == latent_head_size_v;
}
///@}

/// Groups of warps that compute scores on sm_90a, each with its own q. With one, four of the eight warps for O have no columns of head
/// size 64 (H200, 2026-11-29, fp16: one sequence of 8192 keys 10.0 us instead of 10.5, 32 sequences 124.8 instead of 125.6). A second q of a
/// wider head would not fit into the 99 KB of other GPUs.
GIWA_HOST_DEVICE constexpr int score_groups_of(int64 head_size, int64 head_size_v, int rows, int64 cache_bytes) {
  const bool fits = cache_bytes == 1 ? head_size_v <= 256 : head_size_v <= 64 && head_size <= 192;
  return rows <= 16 && fits ? 2 : 1;
}

/// Bytes of scales for each key of a leaf and head: two leaves of keys, four of values.
inline constexpr int64 few_rows_scale_bytes = 4 * (2 + 4);
/// The shared memory of the kernel for few rows with tiles of 16 or 32 packed rows (8 rows take as much as 16): two leaves of
/// keys and of values, q, P of two leaves, and 4 or 5 KB of softmax states; for 8-bit caches scales
/// and factors of rows. Elements with several numbers need less.
GIWA_HOST_DEVICE constexpr int64 few_rows_bytes(int64 head_size, int64 head_size_v, int rows, int64 cache_bytes) {
  const int64 leaf = leaf_keys_of(head_size, head_size_v, cache_bytes), of_q = round_up(head_size, 64);
  const int64 of_scales = cache_bytes == 1 ? few_rows_scale_bytes * leaf + 64 * rows : 0;
  const int64 q = score_groups_of(head_size, head_size_v, rows, cache_bytes) * rows * of_q;
  return 2 * (cache_bytes * leaf * (of_q + round_up(head_size_v, 64)) + q + 2 * rows * leaf) + 3072 + 64 * rows +
         of_scales;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
