// SPDX-License-Identifier: MIT
// Work tiles of a split: one warp walks the split, all warps read them.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_QUEUE_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_QUEUE_SM80_CUH

#include <giwa/arch/mbarrier.cuh>
#include <giwa/attention/work/find_split.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A ring of work tiles. A barrier of the block publishes the first. full[i] completes a phase for each of the work tiles i +
/// 1, i + 1 + depth, and so on.
struct work_tile_queue {
  static constexpr int depth = 4;
  few_rows_work_tile work[depth];  // without leaves after the last
  arch::mbarrier full[depth], empty[depth];

  /// A thread initializes the mbarriers of element i; `readers` is the number of warps that read work tiles.
  GIWA_DEVICE void initialize(int i, int readers) { full[i].initialize(1), empty[i].initialize(readers); }
  /// A thread writes work tile number n, from 1 on.
  GIWA_DEVICE void write(int n, const few_rows_work_tile& x) {
    const int i = n % depth;
    if (n >= depth) empty[i].wait((n / depth & 1) ^ 1);
    work[i] = x;
    full[(n - 1) % depth].arrive();
  }
};

/// A warp that reads the work tiles of a split in order. work() is in shared memory until next().
template <class Block>
struct work_tile_reader {
  const Block& block;
  work_tile_queue& queue;
  int number = 0;

  GIWA_DEVICE const few_rows_work_tile& work() const { return queue.work[number % work_tile_queue::depth]; }
  GIWA_DEVICE bool has_work() const { return work().begin < work().end; }
  GIWA_DEVICE void next() {
    block.sync_warp();
    if (block.lane() == 0) queue.empty[number % work_tile_queue::depth].arrive();
    queue.full[number % work_tile_queue::depth].wait(number / work_tile_queue::depth & 1);
    ++number;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
