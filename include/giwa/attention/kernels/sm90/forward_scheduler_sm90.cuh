// SPDX-License-Identifier: MIT
// The tile scheduler of the Hopper kernel: one thread that picks the block's next work tile.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_SCHEDULER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_SCHEDULER_SM90_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>
#include <giwa/attention/work/visible_groups.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Claims of work tiles. No memset sets the counter to 0, because after one the kernel could not begin before its predecessor ends: the
/// last claim of a launch sets it to 0 for the next one, and work_counter tells a count from other data. With a memset,
/// causal calls took 1.3, 2.4 and 3.1 % longer at 512 tokens, 1.1 to 1.8 % at 1024 and 2048 (64, 128, 256; H200, 2026-11-28).
struct work_claims {
  /// Returns how many claims of the launch came before this one. A launch makes as many as it has work tiles, at most
  /// work_counter::largest_count: the first tile of each block is not claimed, and each block claims until it gets none.
  GIWA_DEVICE static int claim(work_counter& counter, int work_tiles) {
    using word = work_counter::word;
    word found = atomicAdd(&counter.state, work_counter::step);
    while (!work_counter::is_count(found)) {
      // The memory holds other data: this block begins to count, or another one does so before it.
      const word other = atomicCAS(&counter.state, found, work_counter::state_of(1));
      if (other == found)
        found = work_counter::mark;
      else
        found = work_counter::is_count(other) ? atomicAdd(&counter.state, work_counter::step) : other;
    }
    const int before = static_cast<int>(work_counter::count_of(found));
    if (before + 1 == work_tiles) atomicExch(&counter.state, work_counter::mark);
    if (before >= work_tiles) __trap();  // two calls used the workspace at the same time
    return before;
  }
};

/// Puts work tiles into the block's queue: a static share, or those that it pulls from a shared counter. It runs one
/// work tile ahead of the loader, because it computes divisions. It claims the next work tile only when the loader
/// nears the end of the current one: an early claim keeps work from other blocks. One thread; with a mask of blocks a warp, whose lanes
/// all do the same, and ask the mask about the first groups of tiles, each about its own: the loader's first question would
/// keep it from loading the queries.
template <class Types>
struct sm90_tile_scheduler {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using work_tile = typename Types::work_tile;
  static constexpr int queue_depth = Types::queue_depth;
  static constexpr bool is_warp = mask_traits<typename Types::mask>::has_blocks;

  template <class Block>
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    arch::wait_for_previous_kernel();
    uint32 turn = 0;
    const auto next_free = [&]() -> work_tile& {
      s.work_empty[turn % queue_depth].wait((turn / queue_depth & 1) ^ 1);
      if (turn > 0) s.near_end.wait((turn - 1) & 1);
      return s.work[turn % queue_depth];
    };
    const int cluster = Types::multicasts ? p.cluster : 1, rank = Types::multicasts ? arch::cluster_rank() : 0;
    const int queries = Types::queries_of_tile(p);
    int i = static_cast<int>(block.block_rank()) / cluster;
    while (i < p.work_tiles) {
      const attention_schedule::work_tile at = p.schedule.at(p.schedule.first + i);
      s.batch = at.batch, s.head = at.head, s.tile = static_cast<int>(at.tile), s.next_chunk = 0;
      while (!is_fallback(p, at)) {
        work_tile& work = next_free();
        head_place place = p.call.place_of(s.batch, s.head);
        const int count = ceil_div(place.queries(), queries * cluster);
        if (s.tile >= count) break;
        if constexpr (Types::first_tile_is_short) {
          const int end = round_up(place.queries(), 64) - (count - 1 - s.tile) * queries;
          work.first_query = end > queries ? end - queries : 0;
          if (place.query_count > end) place.query_count = end;
        } else {
          work.first_query = (s.tile * cluster + rank) * queries;
          if constexpr (Types::policy::narrows) {
            const int end = work.first_query + queries;
            if (place.query_count > end) place.query_count = end;
          }
        }
        work.head.put(place);
        const auto& head = work.head.get();
        work.keys.put({p.call.mask, head, work.first_query, queries, Types::block_n});
        take_keys(work, s);
        work.end = false;
        if constexpr (is_warp)
          s.groups.of_lane[block.lane()].put(visible_groups<typename Types::tiles_of_keys, Types::consumers>(
                                                 work.keys.get(), work.first_tile, work.end_tile)
                                                 .first_groups(block.lane()));
        put(block, s, turn++);
        if (Types::has_chunks && s.next_chunk > 0) continue;
        const int next_tile = s.tile + static_cast<int>(p.schedule.query_tiles);
        sync(block);
        s.tile = next_tile;
        if (s.tile >= count) break;
      }
      next_free();
      const int step = static_cast<int>(block.block_count()) / cluster;
      int before = i;
      if (p.counter != nullptr && leads(block)) before = work_claims::claim(*p.counter, p.work_tiles);
      if constexpr (is_warp) before = block.shuffle(before, 0);
      i = step + before;
    }
    next_free().end = true;
    put(block, s, turn);
  }

 private:
  template <class Block>
  GIWA_DEVICE static bool leads(const Block& block) {
    return !is_warp || block.lane() == 0;
  }
  template <class Block>
  GIWA_DEVICE static void sync(const Block& block) {
    if constexpr (is_warp) block.sync_warp();
  }
  template <class Block>
  GIWA_DEVICE static void put(const Block& block, shared_storage& s, uint32 turn) {
    sync(block);
    if (leads(block)) s.work_full[turn % queue_depth].arrive();
  }
  /// Sets the K tiles of a work tile: all that it needs, or their next chunk.
  GIWA_DEVICE static void take_keys(work_tile& work, shared_storage& s) {
    const auto& list = work.keys.get();
    const int count = list.count();
    work.continues = work.continued = false;
    work.end_tile = count;
    if (!Types::has_chunks || count <= Types::tiles_of_chunk) {
      work.first_tile = mask_traits<typename Types::mask>::has_blocks ? 0 : list.next(0);  // or by the loader
    } else {
      take_chunk(work, s);
    }
  }

  /// Sets the next chunk of the K tiles of a work tile. It is rare, so it is not inlined: the scheduler is on the
  /// critical path of short calls, and its loop has 66 instructions fewer (128, causal).
  GIWA_DEVICE __noinline__ static void take_chunk(work_tile& work, shared_storage& s) {
    const auto& list = work.keys.get();
    const int count = list.count();
    work.continues = s.next_chunk > 0;
    work.first_tile = list.next(s.next_chunk);
    const int end = (work.first_tile / Types::tiles_of_chunk + 1) * Types::tiles_of_chunk;
    work.continued = end < count && list.next(end) < count;
    if (work.continued) work.end_tile = end;
    if constexpr (is_warp) __syncwarp();  // every lane has read it
    s.next_chunk = work.continued ? end : 0;
  }

  /// Whether the pass left the head of a work tile to the fallback kernel. What the kernel finds out meanwhile does not count: the
  /// blocks of a cluster must agree.
  GIWA_DEVICE static bool is_fallback(const params& p, const attention_schedule::work_tile& at) {
    if constexpr (Types::is_split)
      return p.split.fallback[at.batch * p.call.views.q.extent(2) + at.head] == split_tensors::by_pass;
    return false;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
