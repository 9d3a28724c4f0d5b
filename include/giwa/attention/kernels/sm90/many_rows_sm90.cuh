// SPDX-License-Identifier: MIT
// Attention of many packed rows to a cache on Hopper.
#ifndef GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_SM90_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/elect.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/append/rotated_queries.hpp>
#include <giwa/attention/kernels/sm90/many_rows_loader_sm90.cuh>
#include <giwa/attention/kernels/sm90/many_rows_output_sm90.cuh>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The roles of warps are those of sm90_attention_op, whose loader, scrubbers and consumers they are. The scrubbers
/// copy small pages.
template <class T, class O, class Policy, class Mask, class Score>
struct many_rows_op {
  using types = many_rows_types<T, O, Policy, Mask, Score>;
  using params = typename types::params;
  using shared_storage = typename types::shared_storage;
  static constexpr int block_m = Policy::block_m, consumers = Policy::consumers, max_threads = 128 * (consumers + 1),
                       min_blocks = 1;
  static_assert(Policy::fits);

  template <class Block>
  GIWA_DEVICE __forceinline__ void operator()(Block plain_block, const params& p, shared_storage& s) const {
#if GIWA_ARCH_HAS_SM90A
    const auto block = with_threads<max_threads>(plain_block);
    if (block.rank() == 0)
      for (const tensor_map* map : {&p.q, &p.k, &p.v}) arch::prefetch_tensor_map(*map);
    types::initialize(block, p, s);
    arch::wait_for_previous_kernel();
    arch::launch_dependents();  // merge_partials_op, which waits for this kernel
    const bool clustered = types::multicasts && p.shape.cluster > 1;
    if (clustered)
      arch::cluster_sync();
    else
      block.sync();
    if (block.warp() < 4) {
      arch::release_registers<Policy::producer_registers>();
      if (block.warp() == 0) {
        sm90_loader<types, many_rows_keys<types>>::run(block, p, s);
        block.sync_warp();
        if (p.call.views.is_paged() && arch::elect_one()) many_rows_copier<types>::finish(s);
      }
      if (block.warp() % 2 == 1) {
        if (p.by_chunks)
          many_rows_copier<types>::template run<copies_by_chunks>(block, p, s, block.warp() / 2);
        else if (p.call.views.is_paged())
          many_rows_copier<types>::template run<copies_by_boxes>(block, p, s, block.warp() / 2);
        else
          sm90_nan_scrubber<types>::run(block, s, block.warp() / 2);
      }
      if (block.warp() == 2) many_rows_scheduler<types>::run(block, p, s);
    } else {
      arch::claim_registers<Policy::consumer_registers>();
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
    using query_rows = sm90_query_rows<types, Block>;
    sm90_consumer<types, Block> c(block, p, s);
    earlier_splits<query_rows> earlier;
    if (c.index == consumers - 1) c.pingpong.release();
    for (uint32 turn = 0;; ++turn) {
      s.q_full[c.index].wait(turn & 1);
      const auto& work = s.work[turn % types::queue_depth];
      if (work.end) break;
      if constexpr (rotates_queries<Score>) rotate_queries(c, work);
      query_rows q(c, work);
      sum_in_splits<query_rows, Block> splits(block, earlier, work.split_keys, c.steps.scale_log2());
      if (work.has_keys())
        q.attend(splits);
      else
        q.see_nothing();
      float m[query_rows::softmax_state::rows], l[query_rows::softmax_state::rows];
      splits.finish(q, m, l);
      many_rows_output<types, Block>::run(c, q, m, l);
      arrive_as_warp(block, s.work_empty[turn % types::queue_depth]);
    }
    if (types::stores_tiles && c.thread == 0) arch::wait_stores<0>();
  }

  /// Rotates the queries of a consumer in shared memory, where TMA has loaded them.
  template <class Consumer>
  GIWA_DEVICE static void rotate_queries(const Consumer& c, const typename types::work_tile& work) {
    const packed_rows rows = work.rows[c.index].get();
    const cached_sequence sequence = work.head.get().sequence;
    rotate_tile<128>(c.thread, c.s.rows[c.index].q, rows.rows, c.p.call.score.rotary,
                     [&](int row) { return position_of_query(c.p.call, sequence, rows.query(row)); });
    arch::fence_async_proxy();  // wgmma reads the tile
    arch::barrier_sync(types::barrier_of(types::named_barrier::of_consumer, c.index), 128);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
