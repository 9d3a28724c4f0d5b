// SPDX-License-Identifier: MIT
// The NaN scrubbers of the Hopper kernel: two warps that zero NaN and infinity in V tiles that not every query sees.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_NAN_SCRUBBER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_NAN_SCRUBBER_SM90_CUH

#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// P is 0 for a masked key, but 0 times NaN is NaN. The epilogue adds the scrubbed values to the rows that see them.
template <class Types>
struct sm90_nan_scrubber {
  /// Scrubs all V tiles. Two warps call it, `part` 0 and 1.
  template <class Block>
  GIWA_DEVICE static void run(const Block& block, typename Types::shared_storage& s, int part) {
    auto values = s.v.consumer(block);
    for (;;) {
      const int stage = values.next();
      typename Types::v_tile& tile = values.wait();
      typename Types::v_note& note = s.v_notes[stage];
      if (note.end) break;
      if (note.needs_scrub) scrub(block, s, part, stage, tile, note);
      values.release();
    }
  }
  /// Scans the share of warp `part` in a tile of which some query does not see all. A warp that finds NaN or infinity scrubs the
  /// whole tile; both warps may do so.
  template <class Block>
  GIWA_DEVICE static void scrub(const Block& block, typename Types::shared_storage& s, int part, int stage,
                                typename Types::v_tile& tile, typename Types::v_note& note) {
    if (block.any(has_nonfinite<Types::scrubbers>(block.lane() + 32 * part, tile))) {
      scrub_nonfinite(one_warp<Block>(block), tile, note.has_nonfinite);
      arch::fence_async_proxy();
    }
    block.sync_warp();
    if (block.lane() == 0) s.scrubbed[stage].arrive();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
