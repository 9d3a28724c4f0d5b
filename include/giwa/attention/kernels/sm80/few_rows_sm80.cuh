// SPDX-License-Identifier: MIT
// Attention of up to 32 packed rows to a cache: decoding, at the speed of the memory.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_SM80_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/named_barrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/kernels/sm80/few_rows_loader_sm80.cuh>
#include <giwa/attention/kernels/sm80/few_rows_output_sm80.cuh>
#include <giwa/attention/kernels/sm80/few_rows_scores_sm80.cuh>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The roles of the warps of a kernel for few rows; Scores and Output are those that compute. A block computes one split
/// (splits.hpp).
template <class Types, template <class, class, class, class> class Scores,
          template <class, class, class, class> class Output, class Mask, class Score>
struct few_rows_frame {
  using types = Types;
  using params = typename types::params;
  using shared_storage = typename types::shared_storage;
  static constexpr int max_threads = types::max_threads, min_blocks = 1;

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    using loader = few_rows_loader<types, decltype(with_threads<max_threads>(plain_block))>;
    const auto block = with_threads<max_threads>(plain_block);
    const int split = static_cast<int>(block.block_index()[1]), column = static_cast<int>(block.block_index()[2]);
    const int warp = block.warp(), scores = types::output_warps,
              copies = scores + types::score_groups * types::score_warps;
    if (warp == copies + 1) loader::prepare(block, p, s);  // the warp before it finds the split
    if (!p.splits.early) {
      if (!p.splits.waits_late) wait_for_previous_kernel();
      find_split(block, p.splits.call, p.splits.shape, split, types::leaf_keys, types::rows, s.search);
    }
    if (warp >= copies) {
      release<types::producer_registers>();
      loader(block, p, s, warp - copies).run(split, column);
      return;
    }
    const work_tile_reader<decltype(block)> reader{block, s.queue};
    if (warp < scores) {
      claim<types::output_registers>();
      wait_for_split(p);
      Output<types, Mask, Score, decltype(block)>(block, p, s).run(reader, split, column);
    } else {
      if constexpr (types::score_registers > 128)
        claim<types::score_registers>();
      else
        release<types::score_registers>();
      wait_for_split(p);
      Scores<types, Mask, Score, decltype(block)>(block, p, s, warp - scores).run(reader);
    }
  }

  /// Waits for the previous kernel, and lets the next one start: not before the wait, because merge_partials_op reads lengths,
  /// sinks and the prior while this kernel runs.
  GIWA_DEVICE static void wait_for_previous_kernel() {
    arch::wait_for_previous_kernel();
    arch::launch_dependents();
  }

 private:
  /// Waits until the producers have found the split and initialized the mbarriers.
  GIWA_DEVICE static void wait_for_split(const params& p) {
    if (p.splits.waits_late) wait_for_previous_kernel();
    arch::barrier_sync(types::named_barrier::ready, max_threads);
  }
  template <int Count>
  GIWA_DEVICE static void claim() {
#if GIWA_ARCH_HAS_SM90A
    arch::claim_registers<Count>();
#endif
  }
  template <int Count>
  GIWA_DEVICE static void release() {
#if GIWA_ARCH_HAS_SM90A
    arch::release_registers<Count>();
#endif
  }
};

/// Attention of up to Policy::rows packed rows a tile to a cache. Tiles of two heads of keys are for sm_90a alone.
template <class T, class Element, class O, class Policy, class Mask, class Score>
struct few_rows_op : few_rows_frame<few_rows_types<T, Element, O, Policy, Mask, Score>, few_rows_scores,
                                    few_rows_output, Mask, Score> {
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const typename few_rows_op::params& p,
                              typename few_rows_op::shared_storage& s) const {
    if constexpr (Policy::heads == 1 || GIWA_ARCH_HAS_SM90A)
      few_rows_op::few_rows_frame::operator()(block, p, s);
    else
      __trap();  // never launched
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
