// SPDX-License-Identifier: MIT
// The gradients of attention on Hopper by TMA and wgmma: the roles of a block's warps.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_SM90_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/kernels/sm90/backward_consumer_sm90.cuh>
#include <giwa/attention/kernels/sm90/backward_dq_sm90.cuh>
#include <giwa/attention/kernels/sm90/backward_halves_sm90.cuh>
#include <giwa/attention/kernels/sm90/backward_loader_sm90.cuh>
#include <giwa/attention/kernels/sm90/backward_scheduler_sm90.cuh>
#include <giwa/attention/kernels/sm90/backward_split_sm90.cuh>
#include <giwa/attention/kernels/sm90/backward_wide_sm90.cuh>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// dq by tiles of queries, or dk, dv, both, or both with dq by tiles of keys. Warp 0 loads, warp 2 schedules and, where
/// schedules_keys says so, loads keys and values, and warps 1 and 3 write dq that is added; the other two warpgroups are consumers.
/// A block sums 128 rows of a gradient alone, so their bits are always the same, unless work tiles share rows (shared_key_sums); those of dq that is added follow from its order
/// (sm90_dq_writer).
template <class T, class G, int HeadSize, int HeadSizeV, gradient Of, class Mask, class Score>
struct sm90_backward_op {
  using types = sm90_backward_types<T, G, HeadSize, HeadSizeV, Of, Mask, Score>;
  using policy = typename types::policy;
  using params = typename types::params;
  using shared_storage = typename types::shared_storage;
  static constexpr int block_m = types::block_m;
  static constexpr int max_threads = 128 * (types::consumers + 1), min_blocks = 1;
  static_assert(sizeof(shared_storage) <= sm90_backward_shared::most);

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
#if GIWA_ARCH_HAS_SM90A
    const auto block = with_threads<max_threads>(plain_block);
    using block_type = stdlib::remove_const_t<decltype(block)>;
    types::initialize(block, s);
    if (p.waits_first) arch::wait_for_previous_kernel();
    arch::launch_dependents();  // after the wait: dq_of_sums_op reads words that the kernel before this one resets
    block.sync();
    if (block.warp() < 4) {
      arch::release_registers<policy::producer_registers>();
      if (block.warp() == 0) {
        sm90_backward_loader<types, block_type>::run(block, p, s);
        // A kernel is complete when those before it are. In a warp of which one lane works the others' wait would block that lane.
        if (!p.waits_first) arch::wait_for_previous_kernel();
      }
      if constexpr (types::adds_dq)
        if (block.warp() % 2 == 1 && arch::elect_one()) sm90_dq_writer<types>::run(p, s, block.warp() / 2);
      if (block.warp() == 2 && arch::elect_one()) sm90_backward_scheduler<types>::run(block, p, s);
    } else {
      arch::claim_registers<policy::consumer_registers>();
      if constexpr (types::by_gradient) {
        if (block.any(block.warp() / 4 == 1))  // a vote tells the compiler that all threads of a warp agree
          sm90_wide_consumer<types, block_type, gradient::of_v>::run(block, p, s);
        else
          sm90_wide_consumer<types, block_type, gradient::of_k>::run(block, p, s);
      } else {
        using whole_tiles = stdlib::conditional_t<types::is_split, sm90_split_consumer<types, block_type>,
                                                  sm90_backward_consumer<types, block_type>>;
        using consumer = stdlib::conditional_t<types::by_halves, sm90_halved_consumer<types, block_type>, whole_tiles>;
        consumer::run(block, p, s);
      }
    }
#else
    static_cast<void>(plain_block), static_cast<void>(p), static_cast<void>(s);
    __trap();  // never launched: the host asks for code_for_current_device() first
#endif
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
