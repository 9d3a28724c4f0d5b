// SPDX-License-Identifier: MIT
// The items of a run in shared memory: one warp of the kernel for few rows walks the run, all warps read the items.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_ITEMS_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_ITEMS_SM80_CUH

#include <giwa/arch/mbarrier.cuh>
#include <giwa/attention/work/find_run.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A ring of items. A barrier of the block publishes item 0. full[i] completes a phase for each of the items i + 1, i +
/// 1 + slots, and so on.
struct run_items {
  static constexpr int slots = 4;
  run_item item[slots];  // without leaves after the last
  arch::mbarrier full[slots], empty[slots];

  /// A thread initializes the mbarriers of a slot; `readers` is the number of warps that read items.
  GIWA_DEVICE void initialize(int slot, int readers) { full[slot].initialize(1), empty[slot].initialize(readers); }
  /// A thread writes item number n, from 1 on.
  GIWA_DEVICE void write(int n, const run_item& x) {
    const int slot = n % slots;
    if (n >= slots) empty[slot].wait((n / slots & 1) ^ 1);
    item[slot] = x;
    full[(n - 1) % slots].arrive();
  }
};

/// A warp that reads the items of a run in order. item() is in shared memory until next().
template <class Block>
struct item_reader {
  const Block& block;
  run_items& items;
  int number = 0;

  GIWA_DEVICE const run_item& item() const { return items.item[number % run_items::slots]; }
  GIWA_DEVICE bool has_item() const { return item().begin < item().end; }
  GIWA_DEVICE void next() {
    block.sync_warp();
    if (block.lane() == 0) items.empty[number % run_items::slots].arrive();
    items.full[number % run_items::slots].wait(number / run_items::slots & 1);
    ++number;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
