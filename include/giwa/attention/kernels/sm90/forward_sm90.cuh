// SPDX-License-Identifier: MIT
// Attention on Hopper by TMA and wgmma: the roles of a block's warps.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_SM90_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/elect.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/kernels/sm90/forward_epilogue_sm90.cuh>
#include <giwa/attention/kernels/sm90/forward_loader_sm90.cuh>
#include <giwa/attention/kernels/sm90/forward_scheduler_sm90.cuh>
#include <giwa/attention/kernels/sm90/forward_transposer_sm90.cuh>
#include <giwa/attention/sums/chunks.cuh>
#include <giwa/attention/tuning/sm90_blocks.hpp>
#include <giwa/attention/tuning/sm90_bytes.hpp>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// FlashAttention-3 (Shah et al. 2024, algorithm 2), warp-specialized. Warps 0 to 3 are the producer: 0 loads, 1 and 3
/// scrub NaN, 2 schedules tiles. The other warpgroups are consumers of 64 queries each (forward_consumer_sm90.cuh). Loader and scheduler wait
/// for the previous kernel; the other roles touch global memory only after a barrier at which one of these arrived, or wait too.
template <class T, class O, class Policy, class Mask, class Score>
struct sm90_attention_op {
  using types = sm90_types<T, O, Policy, Mask, Score>;
  using params = typename types::params;
  using shared_storage = typename types::shared_storage;
  static constexpr int block_m = Policy::block_m, consumers = Policy::consumers;
  static constexpr int max_threads = 128 * (consumers + 1), min_blocks = Policy::blocks;
  static_assert(Policy::fits,
                "giwa::attention_forward: on Hopper this tile needs more registers or shared memory than a block has: "
                "choose fewer keys.");

  template <class Block>
  GIWA_DEVICE __forceinline__ void operator()(Block plain_block, const params& p, shared_storage& s) const {
#if GIWA_ARCH_HAS_SM90A
    const auto block = with_threads<max_threads>(plain_block);
    arch::launch_dependents();
    types::initialize(block, s);
    const bool clustered = types::multicasts && p.cluster > 1;
    if (clustered)
      arch::cluster_sync();
    else
      block.sync();
    if (block.warp() < 4) {
      if constexpr (Policy::moves_registers) arch::release_registers<Policy::producer_registers>();
      using keys = stdlib::conditional_t<types::k_major_v, sm90_keys_of_columns<types>, sm90_contiguous_keys<types>>;
      if (block.warp() == 0) sm90_loader<types, keys>::run(block, p, s);
      if constexpr (types::uses_transposers) {
        if (block.warp() % 2 == 1) sm90_transposer<types>::run(block, s, block.warp() / 2);
      } else {
        if (block.warp() % 2 == 1) sm90_nan_scrubber<types>::run(block, s, block.warp() / 2);
      }
      using scheduler = sm90_tile_scheduler<types>;
      if (block.warp() == 2 && (scheduler::is_warp || arch::elect_one())) scheduler::run(block, p, s);
    } else {
      if constexpr (Policy::moves_registers) arch::claim_registers<Policy::consumer_registers>();
      consume(block, p, s);
    }
    if (clustered) arch::cluster_sync();  // the other block may still load into this one or arrive at its barriers
#else
    static_cast<void>(plain_block), static_cast<void>(p), static_cast<void>(s);
    __trap();  // never launched: the host asks for code_for_current_device() first
#endif
  }

 private:
  template <class Block>
  GIWA_DEVICE __forceinline__ static void consume(const Block& block, const params& p, shared_storage& s) {
    using epilogue = sm90_epilogue<types, Block>;
    if constexpr (drops_weights<Score>)
      arch::wait_for_previous_kernel();  // it may write the offset, which is read here
    sm90_consumer<types, Block> c(block, p, s);
    earlier_chunks<sm90_query_rows<types, Block>> earlier;
    if (c.index == consumers - 1) c.pingpong.release();
    for (uint32 turn = 0;; ++turn) {
      s.q_full[c.index].wait(turn & 1);
      const auto& work = s.work[turn % types::queue_depth];
      if (work.end) break;
      sm90_query_rows<types, Block> rows(c, work);
      typename epilogue::row_ends ends;
      if (work.has_keys()) {
        rows.attend(ends);
        // In short calls only the parameter is read: 64 gains 0.6 to 1.2 % (full, 512 to 2048 tokens; H200, 2026-11-22).
        if (types::has_chunks && !ends.is_finished && p.chunked && work.is_chunk()) {
          if (work.continues) {
            // A consumer without a tile in this chunk still has the scale of the chunk before.
            if constexpr (types::is_split) c.steps.scale = p.call.scale * power_of_two(rows.exponents.scores);
            earlier.add_to(block, rows, c.steps);
            epilogue::wait_for_stores(c);
          }
          if (work.continued) earlier.save(rows);  // the epilogue stores a part now; the last chunk overwrites it
        }
      } else {
        rows.see_nothing();
      }
      // A part of the keys is stored where the earlier parts are, so only the last chunk is.
      if (!is_part<Score> || !p.chunked || !work.continued) epilogue::run(c, rows, ends);
      arrive_as_warp(block, s.work_empty[turn % types::queue_depth]);
    }
    if (types::stores_tiles) arch::wait_stores<0>();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
