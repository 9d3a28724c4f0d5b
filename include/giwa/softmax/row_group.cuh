// SPDX-License-Identifier: MIT
// Reductions over the threads that share a row: part of a warp, a block or a cluster.
#ifndef GIWA_SOFTMAX_ROW_GROUP_CUH
#define GIWA_SOFTMAX_ROW_GROUP_CUH

#include <giwa/arch/cluster.cuh>
#include <giwa/arch/mbarrier.cuh>
#include <giwa/numeric/maximum.hpp>
#include <giwa/softmax/device_exponential.cuh>
#include <giwa/softmax/row_plan.hpp>
#include <giwa/softmax/state.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Shared memory of a block: the states of all warps that share a row.
template <class Compute, int Slots>
struct row_states {
  struct state {
    Compute max, sum;
  };
  state slot[Slots];
  arch::mbarrier arrived;  // in a cluster: completes when all states have arrived
};

/// Reduces over groups of `Lanes` neighbouring lanes; all lanes of the group get the result.
template <int Lanes, class Block, class Compute>
GIWA_HOST_DEVICE Compute lanes_max(const Block& block, Compute value) {
  for (int d = Lanes / 2; d > 0; d /= 2) value = larger_of(value, block.shuffle_xor(value, d));
  return value;
}
template <int Lanes, class Block, class Compute>
GIWA_HOST_DEVICE Compute lanes_sum(const Block& block, Compute value) {
  for (int d = Lanes / 2; d > 0; d /= 2) value += block.shuffle_xor(value, d);
  return value;
}

/// Initialises the barrier of a cluster's states and signals that this block runs; before that no block may write to
/// its shared memory.
template <class Block, class States>
GIWA_HOST_DEVICE void announce([[maybe_unused]] const Block& block, [[maybe_unused]] States& shared) {
#if defined(__CUDA_ARCH__)
  if (block.rank() == 0) {
    shared.arrived.initialize(1);
    arch::mbarriers_initialized();
  }
  __syncwarp();
  arch::cluster_arrive_relaxed();
#endif
}
/// Waits until all blocks of the cluster run. Called once, before the first write to another block.
GIWA_HOST_DEVICE inline void await_others() {
#if defined(__CUDA_ARCH__)
  arch::cluster_wait();
#endif
}

/// Sends the warp's state to a slot in every block of the cluster, and waits for the states of all warps. So no block
/// exits before everything that is sent to it has arrived.
template <class Block, class States, class State>
GIWA_HOST_DEVICE void exchange_states([[maybe_unused]] const Block& block, [[maybe_unused]] States& shared,
                                      [[maybe_unused]] const State& own, [[maybe_unused]] int slot,
                                      [[maybe_unused]] int blocks, [[maybe_unused]] int used) {
#if defined(__CUDA_ARCH__)
  constexpr int words = sizeof(State) / 8;
  if (block.rank() == 0) shared.arrived.arrive_and_expect(used * static_cast<int>(sizeof(State)));
  if (block.lane() < blocks) {
    uint64 word[words];
    __builtin_memcpy(word, &own, sizeof own);
    const uint32 to = arch::cluster_address(arch::shared_address(&shared.slot[slot]), block.lane());
    const uint32 barrier = arch::cluster_address(shared.arrived.address(), block.lane());
    for (int i = 0; i < words; ++i) arch::cluster_store_async(to + 8 * static_cast<uint32>(i), word[i], barrier);
  }
  shared.arrived.wait(0);
#endif
}

/// Merges the states of all warps that share the row; all lanes of a warp pass the same state, and every thread gets
/// the same bits. A warp writes its state to its block's shared memory, or to that of every block of the cluster, so
/// one barrier is enough. `part` is the block's rank among the `blocks` that share the row.
template <row_owner Owner, int Slots, class Exp, class Block, class Compute>
GIWA_HOST_DEVICE softmax_state<Compute> merge_warps(const Block& block, softmax_state<Compute> own, int blocks,
                                                    int part, row_states<Compute, Slots>& shared) {
  using states = row_states<Compute, Slots>;
  const int warps = block.size() / 32, lane = block.lane();
  const int slot = part * warps + block.warp(), used = blocks * warps;
  const typename states::state mine{own.max, own.sum};
  if constexpr (Owner == row_owner::cluster) {
    exchange_states(block, shared, mine, slot, blocks, used);
  } else {
    if (lane == 0) shared.slot[slot] = mine;
    block.sync();
  }

  constexpr int each = (Slots + 31) / 32;
  softmax_state<Compute> seen[each];
  softmax_state<Compute> row;
  for (int i = 0; i < each; ++i) {
    if (lane + 32 * i < used) {
      const auto found = shared.slot[lane + 32 * i];
      seen[i] = {found.max, found.sum};
    }
    row.max = larger_of(row.max, seen[i].max);
  }
  row.max = lanes_max<32>(block, row.max);
  const Compute reference = row.reference();
  for (int i = 0; i < each; ++i) row.sum += seen[i].sum * Exp{}(seen[i].max - reference);
  row.sum = lanes_sum<32>(block, row.sum);
  return row;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
