// SPDX-License-Identifier: MIT
// Transposes 8-bit V tiles in the Hopper kernel, without their NaN.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_TRANSPOSER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_TRANSPOSER_SM90_CUH

#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>
#include <giwa/tile/operand_of_bytes.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Takes the place of the NaN scrubber: each V tile passes through its registers. A NaN in a tile of which some query does not see
/// all becomes 0, as there, and the epilogue adds it to the rows that see it.
template <class Types>
struct sm90_transposer {
  using from_tile = typename Types::loaded_v_tile;
  using to_tile = typename Types::v_tile;
  static constexpr int steps = Types::block_n / 32, columns = Types::head_size_v / 16;

  /// Transposes all V tiles. Two warps call it, `part` 0 and 1, and each writes every second group of columns.
  template <class Block>
  GIWA_DEVICE static void run(const Block& block, typename Types::shared_storage& s, int part) {
    auto loaded = s.transposer.v.consumer(block);
    auto transposed = s.v.filler(block);
    for (int stage = 0;; stage = stage + 1 == Types::stages ? 0 : stage + 1) {
      const auto& note = s.v_notes[loaded.next()];
      const from_tile& from = loaded.wait();
      if (note.end) break;
      const bool scrubs = block.any(note.needs_scrub);
      transposed.put([&](to_tile& to, arch::mbarrier& full) {
        if (scrubs) {
          uint32 found = 0;
          transpose(block.lane(), part, from, to, [&](uint32& word) {
            const uint32 nan = nan_bytes(word);
            word &= ~nan, found |= nan;
          });
          const bool any = block.any(found != 0);
          if (block.lane() == 0) s.transposer.has_nonfinite[stage][part] = any ? 1 : 0;
        } else {
          transpose(block.lane(), part, from, to, [](uint32&) {});
        }
        arch::fence_async_proxy();
        block.sync_warp();
        if (block.lane() == 0) full.arrive();
      });
      loaded.release();
    }
  }

 private:
  template <class Change>
  GIWA_DEVICE static void transpose(int lane, int part, const from_tile& from, to_tile& to, const Change& change) {
#pragma unroll 1
    for (int column = part; column < columns; column += Types::scrubbers) {
      GIWA_UNROLL
      for (int step = 0; step < steps; ++step) transpose_bytes(lane, from, step, column, to, change);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
