// SPDX-License-Identifier: MIT
// The tiles of the mma.sync kernels of attention_backward.
#ifndef GIWA_ATTENTION_TUNING_BACKWARD_SM80_HPP
#define GIWA_ATTENTION_TUNING_BACKWARD_SM80_HPP

#include <giwa/attention/problem/score_gradient.hpp>
#include <giwa/base/std.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

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
  // Where that needs more than the 99 KB of a block on some GPUs (8.6, 8.9, 12.0). Not run on such a GPU yet.
  using smaller = stdlib::conditional_t<(widest <= 128), sm80_backward_tile<64, 32, 4, 2, 2>,
                                                         sm80_backward_tile<64, 16, 4, 1, 2>>;
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
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
