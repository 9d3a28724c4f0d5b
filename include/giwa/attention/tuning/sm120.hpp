// SPDX-License-Identifier: MIT
// The tiles of the mma.sync kernels of attention for GPUs whose blocks have 99 KB of shared memory: 8.6, 8.9 and 12.x.
#ifndef GIWA_ATTENTION_TUNING_SM120_HPP
#define GIWA_ATTENTION_TUNING_SM120_HPP

#include <giwa/attention/problem/traits.hpp>
#include <giwa/attention/tuning/sm80.hpp>

namespace giwa::inline GIWA_ABI::detail {

// Compiled in CI. Not run on such a GPU yet, so nothing here is measured: each tile is that of tuning/sm80.hpp if it fits, else
// the largest that does.

/// The tile of attention_forward in 16 bits.
template <int HeadSize, int HeadSizeV, class Automatic>
struct sm120_policy_of {
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest > 256), sm80_policy<64, 16, 4, HeadSize, HeadSizeV, 1>,
      stdlib::conditional_t<(widest > 240), sm80_policy<64, 48, 4, HeadSize, HeadSizeV, 1>,
                            typename sm80_policy_of<HeadSize, HeadSizeV, Automatic>::type>>;
  // clang-format on
};
/// The caller's tile stays, and is an error where it does not fit.
template <int HeadSize, int HeadSizeV, int BlockM, int BlockN>
struct sm120_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>>
    : sm80_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>> {};

/// The tile of attention_backward by gradient.
template <int HeadSize, int HeadSizeV>
struct sm120_backward_tile_of {
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  using type =
      stdlib::conditional_t<(widest <= 128), sm80_backward_tile<64, 32, 4, 2, 2>, sm80_backward_tile<64, 16, 4, 1, 2>>;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
