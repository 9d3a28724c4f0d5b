// SPDX-License-Identifier: MIT
// Which threads share a row of a softmax, by its length alone: the shapes of the kernel, and the choice among them.
#ifndef GIWA_SOFTMAX_ROW_PLAN_HPP
#define GIWA_SOFTMAX_ROW_PLAN_HPP

#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The threads that share a row: neighbouring lanes of a warp, a block, or a cluster of blocks.
enum class row_owner : int { lanes, block, cluster };

/// Places of a shape that an element takes: 1, or 2 for fp64.
template <class Compute>
inline constexpr int weight_of = static_cast<int>(sizeof(Compute)) / 4;

/// A shape of the kernel. A thread holds `Elements` elements of a row, or half as many in fp64. `Lanes` neighbouring
/// lanes of a warp share a row, or all lanes of a block or of a cluster's blocks. The number of threads and of blocks
/// is chosen at run time.
template <row_owner Owner, int Lanes, int Elements, bool Resident, int MaxThreads, int MinBlocks>
struct row_shape {
  static constexpr row_owner owner = Owner;
  static constexpr bool resident = Resident;  // a row fits in its owner's registers and is read once; else twice
  static constexpr int lanes = Lanes, elements = Elements, max_threads = MaxThreads, min_blocks = MinBlocks;
  static constexpr int max_blocks = Owner == row_owner::cluster ? 8 : 1;  // 8 on every GPU that has clusters
};

/// Elements that a thread reads or writes in one access: 16 bytes of the wider type.
template <class T, class U>
inline constexpr int packet_count = 16 / static_cast<int>(sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U));

/// Threads of a block, and blocks that share a row, a power of two. threads is 0 if the row does not fit the shape.
struct row_launch {
  int threads, blocks, blocks_log2;
};

/// Returns the fewest blocks that hold a row of `places` (columns times weight_of), each with the fewest warps.
template <class Shape>
GIWA_HOST_DEVICE constexpr row_launch launch_of(int64 places) {
  if constexpr (!Shape::resident) {
    return {Shape::max_threads, Shape::max_blocks, Shape::max_blocks == 8 ? 3 : 0};
  } else if constexpr (Shape::owner == row_owner::lanes) {
    return {places <= Shape::lanes * Shape::elements ? Shape::max_threads : 0, 1, 0};
  } else {
    for (int log2 = 0; 1 << log2 <= Shape::max_blocks; ++log2) {
      const int64 threads = round_up(ceil_div(places, int64{Shape::elements} << log2), 32);
      if (threads <= Shape::max_threads) return {static_cast<int>(threads), 1 << log2, log2};
    }
    return {0, 0, 0};
  }
}

// Speed relative to a copy of the same bytes, H200, 2026-11-21, fp32 and fp16, 1 GiB read a case
// (docs/results/2026-11-21_h200_softmax.csv). Rows on 16-byte boundaries:
//   256 columns 0.97 1.00    1000 0.97 0.97    8192 0.97 0.98    16384 0.97 0.98    32768 0.98 0.95    131072 0.97 0.86
// and off them: 1001 0.96 0.93    50257 0.96 0.66. docs/notes/softmax.md has the shapes that were slower.
using row_of_8_lanes = row_shape<row_owner::lanes, 8, 16, true, 128, 12>;
using row_of_16_lanes = row_shape<row_owner::lanes, 16, 16, true, 128, 12>;
using row_of_warp = row_shape<row_owner::lanes, 32, 16, true, 128, 12>;
using long_row_of_warp = row_shape<row_owner::lanes, 32, 32, true, 128, 8>;
using row_of_block = row_shape<row_owner::block, 32, 16, true, 512, 3>;
using long_row_of_block = row_shape<row_owner::block, 32, 32, true, 512, 2>;
using row_of_cluster = row_shape<row_owner::cluster, 32, 32, true, 512, 2>;
using any_row_of_block = row_shape<row_owner::block, 32, 16, false, 512, 2>;
using any_row_of_cluster = row_shape<row_owner::cluster, 32, 16, false, 512, 2>;

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
template <class First, class... Rest, class With>
constexpr auto with_first_shape(int64 places, const With& with) {
  const row_launch l = launch_of<First>(places);
  if constexpr (sizeof...(Rest) > 0)
    if (l.threads == 0) return with_first_shape<Rest...>(places, with);
  return with(First{}, l);
}

/// Calls `with(Shape{}, launch)` for the first shape that holds rows of `places`. Only the length and `clusters`
/// decide; whether there are clusters is a property of the GPU and the build.
template <class With>
constexpr auto with_row_shape(int64 places, bool clusters, const With& with) {
  if (clusters)
    return with_first_shape<row_of_8_lanes, row_of_16_lanes, row_of_warp, long_row_of_warp, row_of_block,
                            long_row_of_block, row_of_cluster, any_row_of_cluster>(places, with);
  return with_first_shape<row_of_8_lanes, row_of_16_lanes, row_of_warp, long_row_of_warp, row_of_block,
                          long_row_of_block, any_row_of_block>(places, with);
}
#endif

}  // namespace giwa::inline GIWA_ABI::detail

#endif
