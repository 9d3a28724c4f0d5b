// SPDX-License-Identifier: MIT
// The kernel for many latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_SM90_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/kernels/sm90/latent_wide_consumer_sm90.cuh>
#include <giwa/attention/kernels/sm90/latent_wide_loader_sm90.cuh>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A block computes one split (splits.hpp), whose leaves are those of latent_wide_leaf().
template <class T, class Element, class O, class Policy, class Mask, class Score>
struct latent_wide_op {
  using types = latent_wide_types<T, Element, O, Policy, Mask, Score>;
  using params = typename types::params;
  using shared_storage = typename types::shared_storage;
  static constexpr int max_threads = types::max_threads, min_blocks = 1;

  // Always inline: with wgmma in a function that is called, ptxas waits after each product.
  template <class Block>
  GIWA_DEVICE __forceinline__ void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    using loader = latent_wide_loader<types, stdlib::remove_cvref_t<decltype(block)>>;
    const int split = static_cast<int>(block.block_index()[1]), column = static_cast<int>(block.block_index()[2]);
    const int warp = block.warp();
    if (warp == types::output_warps) loader::prepare(block, p, s);
    const bool early = p.splits.early;
    static_assert(sizeof s.p >= sizeof(int) * 32);
    auto* const lengths = reinterpret_cast<int*>(&s.p);  // P is not written before all warps have compared them
    if (early && warp == 0) {
      const split_position found =
          find_split_early(block, p.splits.call, p.splits.shape, split, p.splits.leaf_keys, s.search, lengths);
      if (block.lane() == 0) s.search.found = found;
    }
    arch::wait_for_previous_kernel();
    arch::launch_dependents();
    if (early) block.sync();
    // Every warp compares the lengths, so all agree.
    if (!early || !has_same_lengths(block, p.splits.call, lengths))
      find_split(block, p.splits.call, p.splits.shape, split, p.splits.leaf_keys, p.splits.tile_rows, s.search);
    if (warp >= types::output_warps) {
#if GIWA_ARCH_HAS_SM90A
      arch::release_registers<types::producer_registers>();
#endif
      loader{{}, block, p, s, warp - types::output_warps}.run(column);
      return;
    }
    const work_tile_reader<stdlib::remove_cvref_t<decltype(block)>> reader{block, s.queue};
    const auto consume = [&](auto&& consumer) {
      arch::barrier_sync(types::named_barrier::ready, max_threads);
      consumer.run(consumer, reader, split, column);
    };
    if (warp >= 4) {
#if GIWA_ARCH_HAS_SM90A
      arch::claim_registers<types::follower_registers>();
#endif
      consume(latent_wide_follower<types, Mask, Score, stdlib::remove_cvref_t<decltype(block)>>(block, p, s));
    } else {
#if GIWA_ARCH_HAS_SM90A
      arch::claim_registers<types::scorer_registers>();
#endif
      consume(latent_wide_scorer<types, Mask, Score, stdlib::remove_cvref_t<decltype(block)>>(block, p, s));
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
