// SPDX-License-Identifier: MIT
// grid_barrier: the memory of a barrier for all blocks of a grid.
#ifndef GIWA_GRID_GRID_BARRIER_HPP
#define GIWA_GRID_GRID_BARRIER_HPP

#include <giwa/base/macros.hpp>

namespace giwa::inline GIWA_ABI {

/// The memory of a barrier for all blocks of a grid: one object in memory that the kernel can write, zero before its first
/// use, to which the params of an op point. The op calls `block.sync_grid(*p.barrier)`, and its launch says
/// `.cooperative = true`. Any number of barriers and of launches, one after the other, use one object; launches that may
/// overlap need one each.
///
///     auto barrier = giwa::device_array<giwa::grid_barrier>::allocate(stream, 1);
///     giwa::fill(stream, barrier.value, giwa::grid_barrier{});
struct grid_barrier {
  unsigned long long state = 0;  ///< Low 32 bits: blocks that have arrived. High 32 bits: barriers that are complete.
};

}  // namespace giwa::inline GIWA_ABI

#endif
