// SPDX-License-Identifier: MIT
// An op is a kernel as a type: the same body runs on a stream and, thread by thread, on the host.
#ifndef GIWA_GRID_OP_HPP
#define GIWA_GRID_OP_HPP

#include <giwa/base/assert.hpp>
#include <giwa/base/status.hpp>
#include <giwa/device/host.hpp>
#include <giwa/grid/launch_config.hpp>
#include <giwa/numeric/stride_range.hpp>

namespace giwa::inline GIWA_ABI {

/// The shared_storage of an op that has none.
struct no_shared_storage {};

/// What launch() runs. An op is a trivially copyable type with
///   using params = …;                               trivially copyable; what the kernel is told
///   using shared_storage = …;                       the block's shared memory, uninitialised; or no_shared_storage
///   static constexpr int max_threads = …;           the most threads a block may have (a multiple of 32)
///   static constexpr int min_blocks = …;            blocks that should fit on a multiprocessor at once (a hint, >= 1)
///   `template <class Block>`
///   GIWA_HOST_DEVICE void operator()(Block block, const params&, shared_storage&) const;
/// `block` is the thread's view of its block, see device_block. A body that uses no __shared__, no thread_local and no
/// __CUDA_ARCH__ runs on the host as it does on the device.
template <class Op>
concept kernel_op = requires {
  typename Op::params;
  typename Op::shared_storage;
  { Op::max_threads + Op::min_blocks } -> stdlib::convertible_to<int>;
};

/// The elements [0, n) shared out over the threads of a block, for an op: thread r takes r, r + size, r + 2 size, …
template <class Block>
GIWA_HOST_DEVICE constexpr stride_range block_stride(const Block& block, int64 n) {
  return {block.rank(), n, block.size()};
}

/// The elements [0, n) shared out over all threads of the grid, for an op.
template <class Block>
GIWA_HOST_DEVICE constexpr stride_range grid_stride(const Block& block, int64 n) {
  return {block.block_rank() * block.size() + block.rank(), n, block.block_count() * block.size()};
}

/// A block of which the op knows how many threads it has, see with_threads().
template <int Threads, class Block>
struct sized_block : Block {
  /// The block as it is, with a constant for its number of threads.
  ///@{
  GIWA_HOST_DEVICE explicit constexpr sized_block(const Block& b) : Block(b) {}
  GIWA_HOST_DEVICE static constexpr int size() { return Threads; }
  ///@}
};

/// For an op that is always launched with `Threads` threads a block: what is shared out over them is then shared out by
/// constants, so that copies of tiles become straight lines of accesses.
template <int Threads, class Block>
GIWA_HOST_DEVICE constexpr sized_block<Threads, Block> with_threads(const Block& block) {
  GIWA_ASSERT(block.size() == Threads, "the block was launched with another number of threads than its op says");
  return sized_block<Threads, Block>(block);
}

namespace detail {

template <class Op>
struct host_executor;  // defined by <giwa/host_executor.cuh>

/// An op whose params hold a function that it has checked itself says so by a member params_go_as_bytes.
template <class Op>
concept params_go_as_bytes = goes_as_bytes<typename Op::params> || requires { requires Op::params_go_as_bytes; };

template <class Op>
GIWA_HOST_DEVICE constexpr void require_op() {
  static_assert(
      kernel_op<Op>,
      "giwa::launch: an op has `params`, `shared_storage`, `max_threads` and `min_blocks`; see giwa/grid/op.hpp.");
  static_assert(
      goes_as_bytes<Op> && params_go_as_bytes<Op>,
      "giwa::launch: an op and its `params` are copied to the device byte by byte: make both trivially copyable.");
  static_assert(
      stdlib::is_trivially_default_constructible_v<typename Op::shared_storage> &&
          stdlib::is_trivially_destructible_v<typename Op::shared_storage>,
      "giwa::launch: shared memory starts uninitialised: give `shared_storage` no constructor and no initialiser.");
  static_assert(Op::max_threads % launch_limits::warp_threads == 0 && Op::max_threads >= 32 && Op::max_threads <= 1024,
                "giwa::launch: an op's `max_threads` is a multiple of 32 from 32 to 1024.");
  static_assert(Op::min_blocks >= 1, "giwa::launch: an op's `min_blocks` is at least 1.");
}

/// The rules for an op's launch, on any device: those of validate(), and whole warps, so that shuffles have partners.
template <class Op>
GIWA_HOST_DEVICE constexpr status validate_op(const launch_config& c) {
  if (const status s = validate(c); !s.ok()) return s;
  if (c.block.count() > Op::max_threads)
    return status::invalid("block", "a block has more threads than the op's max_threads", bound::at_most,
                           Op::max_threads, c.block.count());
  if (c.block.count() % launch_limits::warp_threads != 0)
    return status::invalid("block", "an op's block is a whole number of warps: a multiple of 32 threads");
  if (c.shared_bytes != 0)
    return status::invalid("shared_bytes", "an op's shared memory is its shared_storage: leave this out",
                           bound::exactly, 0, c.shared_bytes);
  return {};
}

}  // namespace detail

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
/// Runs an op on the CPU with the real block structure: every thread of a block, its barriers, shuffles and shared
/// memory, one block after the other. Returns when all is done. For tests and for a debugger, not for speed.
template <class Op>
status launch(host_t, const launch_config& config, const Op& op, const typename Op::params& params) {
  detail::require_op<Op>();
  static_assert(detail::defined<detail::host_executor<Op>>,
                "giwa::launch(giwa::host, …) needs #include <giwa/host_executor.cuh>.");
  if (const status s = detail::validate_op<Op>(config); !s.ok()) return s;
  return detail::host_executor<Op>::run(config, op, params);
}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
