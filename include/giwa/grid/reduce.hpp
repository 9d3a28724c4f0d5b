// SPDX-License-Identifier: MIT
// Reductions and scans of a warp and of a block, for the bodies of ops.
#ifndef GIWA_GRID_REDUCE_HPP
#define GIWA_GRID_REDUCE_HPP

#include <giwa/base/assert.hpp>
#include <giwa/numeric/maximum.hpp>

namespace giwa::inline GIWA_ABI {

/// The maximum as the operation of a reduction. Ignores a NaN, as fmaxf does.
struct larger {
  /// Returns max(a, b).
  GIWA_HOST_DEVICE float operator()(float a, float b) const { return detail::larger_of(a, b); }
};
/// The sum as the operation of a reduction.
struct plus {
  /// Returns a + b.
  template <class T>
  GIWA_HOST_DEVICE constexpr T operator()(T a, T b) const {
    return a + b;
  }
};

/// Returns op over the values of all lanes of a warp, to each of them: `reduce_warp(block, x)` is their sum. All lanes of
/// the warp call it. The order, and so the bits of a sum, is always the same.
///
/// Parameters:
///   - block: of the op
///   - x: the lane's value
///   - op: associative and commutative: plus{}, larger{} or a functor
template <class Block, class T, class Op = plus>
GIWA_HOST_DEVICE T reduce_warp(const Block& block, T x, const Op& op = {}) {
  GIWA_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x = op(x, block.shuffle_xor(x, mask));
  return x;
}

/// Returns op over the values of lanes 0 to the caller's, its own included (an inclusive scan). All lanes of the warp call it.
///
/// Parameters:
///   - block: of the op
///   - x: the lane's value
///   - op: associative, op(earlier, later)
template <class Block, class T, class Op = plus>
GIWA_HOST_DEVICE T scan_warp(const Block& block, T x, const Op& op = {}) {
  GIWA_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) {
    const T earlier = block.shuffle_up(x, distance);
    if (block.lane() >= distance) x = op(earlier, x);
  }
  return x;
}

/// Shared memory of reduce_block() and scan_block(), a member of the op's shared_storage. Calls may use the same one
/// without a barrier between them.
template <class T>
struct block_partials {
  T of_warp[32];  ///< the result of each warp
};

/// Returns op over the values of all threads of a block, to each of them. All threads call it, in a block of whole warps.
/// The order is always the same.
///
/// Parameters:
///   - block: of the op
///   - x: the thread's value
///   - shared: a member of the op's shared_storage
///   - op: associative and commutative, as for reduce_warp()
template <class Block, class T, class Op = plus>
GIWA_HOST_DEVICE T reduce_block(const Block& block, T x, block_partials<T>& shared, const Op& op = {}) {
  GIWA_ASSERT(block.size() % 32 == 0, "reduce_block: the block must have whole warps");
  x = reduce_warp(block, x, op);
  block.sync();  // the results of the previous call have been read
  if (block.lane() == 0) shared.of_warp[block.warp()] = x;
  block.sync();
  x = shared.of_warp[0];
  for (int warp = 1; warp < block.size() / 32; ++warp) x = op(x, shared.of_warp[warp]);
  return x;
}

/// What scan_block() returns.
template <class T>
struct scan_result {
  T inclusive;  ///< op over the threads up to the caller, which is included
  T total;      ///< op over all threads
};

/// Returns op over the values of threads 0 to the caller's, and over all: for sums, the threads before have
/// `inclusive - x`. All threads call it, in a block of whole warps.
///
/// Parameters:
///   - block: of the op
///   - x: the thread's value
///   - shared: a member of the op's shared_storage
///   - op: associative, op(earlier, later)
template <class Block, class T, class Op = plus>
GIWA_HOST_DEVICE scan_result<T> scan_block(const Block& block, T x, block_partials<T>& shared, const Op& op = {}) {
  GIWA_ASSERT(block.size() % 32 == 0, "scan_block: the block must have whole warps");
  x = scan_warp(block, x, op);
  block.sync();  // the results of the previous call have been read
  if (block.lane() == 31) shared.of_warp[block.warp()] = x;
  block.sync();
  T total = shared.of_warp[0];
  if (block.warp() == 1) x = op(total, x);
  for (int warp = 1; warp < block.size() / 32; ++warp) {
    total = op(total, shared.of_warp[warp]);
    if (block.warp() == warp + 1) x = op(total, x);
  }
  return {x, total};
}

}  // namespace giwa::inline GIWA_ABI

#endif
