// SPDX-License-Identifier: MIT
// Which threads own a row of a softmax, by its length alone: the shapes of the kernel, and the choice among them.
#ifndef GIWA_SOFTMAX_ROW_PLAN_HPP
#define GIWA_SOFTMAX_ROW_PLAN_HPP

#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Whose a row is.
enum class row_owner : int { lanes, block, cluster };

/// What an element takes of a shape: a double two places.
template <class Compute>
inline constexpr int weight_of = static_cast<int>(sizeof(Compute)) / 4;

/// A shape of the kernel. A thread holds `Elements` of a row, or half as many doubles. `Lanes` neighbours in a warp own a
/// row, or all 32 of every warp of a block or of a cluster's blocks. The block's threads and the cluster's blocks are chosen
/// at run time.
template <row_owner Owner, int Lanes, int Elements, bool Resident, int MaxThreads, int MinBlocks>
struct row_shape {
  static constexpr row_owner owner = Owner;
  static constexpr bool resident = Resident;  // a row fits in its owner's registers and is read once; else twice
  static constexpr int lanes = Lanes, elements = Elements, max_threads = MaxThreads, min_blocks = MinBlocks;
  static constexpr int max_blocks = Owner == row_owner::cluster ? 8 : 1;  // 8 on every GPU that has clusters
};

/// Elements that a thread reads and writes at once: 16 bytes of the wider type.
template <class T, class U>
inline constexpr int packet_count = 16 / static_cast<int>(sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U));

/// Threads of a block, and blocks that own a row, a power of two; threads is 0 where the shape is too small for the row.
struct row_launch {
  int threads, blocks, blocks_log2;
};

/// As few blocks as hold a row that takes so many places (columns times weight_of), each with as few warps as it takes.
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

// Speed beside a copy of the same bytes on an H200, 2026-11-21, fp32 and fp16, 1 GiB read a case
// (docs/results/2026-11-21_h200_softmax.csv). Rows on whole packets:
//   256 columns 0.97 1.00    1000 0.97 0.97    8192 0.97 0.98    16384 0.97 0.98    32768 0.98 0.95    131072 0.97 0.86
// and off them: 1001 0.96 0.93    50257 0.96 0.66. Low are fp16 rows of a cluster, and very low those off whole packets; why
// is not known: with 1312 instructions in place of 1584 in its code, 50257 went from 0.63 to 0.66 only.
// What else was tried. Blocks of 256 threads, not 128, for rows of some lanes: fp16 256 0.98, 1001 0.87. A branch on the
// words of a row's shift, the same for all its threads, in place of selects: fp16 50257 0.64. Its words read one by one, as
// rows of lanes do: 0.52; so and as five blocks of 320 threads 0.59, as eight of 224 0.61. 32768 as three blocks of 352:
// 0.97 0.89. 16384 as two blocks of 16 elements a thread: 0.90 0.82. Blocks that stay and read their next row
// ahead, into registers or into shared memory: 0.89 0.88 in four rounds, 0.94 0.93 in sixteen, against 0.97 0.97 where every
// row has a block of its own: the hardware hands out rows in the order in which they lie in memory. 131072 with a cluster
// barrier that orders memory, a fence of the whole GPU: 0.82 0.65. Each load after a look at where the row ends, so that the
// compiler makes one wait for the other: fp16 16384 0.84.
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

/// Calls `with(Shape{}, launch)` for the first shape that holds rows of so many places. Whether there are clusters is a
/// property of the GPU and the build; that and the length decide, nothing else.
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
