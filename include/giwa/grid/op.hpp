// SPDX-License-Identifier: MIT
// Ops: a kernel as a type, whose body runs on a stream and, thread by thread, on the host.
#ifndef GIWA_GRID_OP_HPP
#define GIWA_GRID_OP_HPP

#include <giwa/base/assert.hpp>
#include <giwa/base/status.hpp>
#include <giwa/device/host.hpp>
#include <giwa/grid/launch_config.hpp>
#include <giwa/numeric/stride_range.hpp>

namespace giwa::inline GIWA_ABI {

/// The shared_storage of an op that uses no shared memory.
struct no_shared_storage {};

/// A kernel that launch() runs. An op is a trivially copyable type with
///   using params = ...;                             the arguments of the kernel, trivially copyable
///   using shared_storage = ...;                     the shared memory of a block, uninitialised; or no_shared_storage
///   static constexpr int max_threads = ...;         the most threads of a block, a multiple of 32, at most 1024
///   static constexpr int min_blocks = ...;          blocks that should fit on a multiprocessor at once, at least 1; a hint
///   `template <class Block>`
///   GIWA_HOST_DEVICE void operator()(Block block, const params&, shared_storage&) const;
/// `block` is the thread's handle to its block, see device_block. A body that uses no __shared__, no thread_local and no
/// __CUDA_ARCH__ also runs on the host.
template <class Op>
concept kernel_op = requires {
  typename Op::params;
  typename Op::shared_storage;
  { Op::max_threads + Op::min_blocks } -> stdlib::convertible_to<int>;
};

/// Returns the elements of [0, n) that this thread of the block takes: rank, rank + size, rank + 2 size, and so on. For ops;
/// kernels use block_stride(n).
template <class Block>
GIWA_HOST_DEVICE constexpr stride_range block_stride(const Block& block, int64 n) {
  return {block.rank(), n, block.size()};
}

/// Returns the elements of [0, n) that this thread of the grid takes. For ops; kernels use grid_stride(n).
template <class Block>
GIWA_HOST_DEVICE constexpr stride_range grid_stride(const Block& block, int64 n) {
  return {block.block_rank() * block.size() + block.rank(), n, block.block_count() * block.size()};
}

/// A block whose number of threads is a constant, see with_threads().
template <int Threads, class Block>
struct sized_block : Block {
  /// Takes the block.
  GIWA_HOST_DEVICE explicit constexpr sized_block(const Block& b) : Block(b) {}
  /// Returns the number of threads, a constant.
  GIWA_HOST_DEVICE static constexpr int size() { return Threads; }
};

/// Returns `block` with a constant number of threads, for an op that is always launched with `Threads` threads. Tile copies
/// by such a block are unrolled into straight-line code.
template <int Threads, class Block>
GIWA_HOST_DEVICE constexpr sized_block<Threads, Block> with_threads(const Block& block) {
  GIWA_ASSERT(block.size() == Threads, "the block must be launched with the number of threads of with_threads");
  return sized_block<Threads, Block>(block);
}

namespace detail {

template <class Op>
struct host_executor;  // defined by <giwa/host_executor.cuh>

/// Whether params may be copied as bytes. An op whose params hold a user's function, which it has checked, says so by a
/// member params_go_as_bytes.
template <class Op>
concept params_go_as_bytes = goes_as_bytes<typename Op::params> || requires { requires Op::params_go_as_bytes; };

template <class Op>
GIWA_HOST_DEVICE constexpr void require_op() {
  static_assert(kernel_op<Op>,
                "giwa::launch: give the op params, shared_storage, max_threads and min_blocks; see giwa/grid/op.hpp.");
  static_assert(goes_as_bytes<Op> && params_go_as_bytes<Op>,
                "giwa::launch: an op and its params are copied to the device as bytes: make both trivially copyable.");
  static_assert(
      stdlib::is_trivially_default_constructible_v<typename Op::shared_storage> &&
          stdlib::is_trivially_destructible_v<typename Op::shared_storage>,
      "giwa::launch: shared memory starts uninitialised: give shared_storage no constructor and no initialiser.");
  static_assert(Op::max_threads % launch_limits::warp_threads == 0 && Op::max_threads >= 32 && Op::max_threads <= 1024,
                "giwa::launch: make max_threads of the op a multiple of 32 from 32 to 1024.");
  static_assert(Op::min_blocks >= 1, "giwa::launch: make min_blocks of the op at least 1.");
}

/// Whether the arguments after an op are its params, as one value.
template <class Op, class... Arguments>
inline constexpr bool params_for = false;
template <kernel_op Op, class Argument>
inline constexpr bool params_for<Op, Argument> = stdlib::convertible_to<const Argument&, typename Op::params>;

template <class Op>
GIWA_HOST_DEVICE constexpr void refuse_params() {
  static_assert(kernel_op<Op>,
                "giwa::launch: give the op params, shared_storage, max_threads and min_blocks; see giwa/grid/op.hpp.");
  static_assert(!kernel_op<Op>,
                "giwa::launch: pass the params of the op as one argument of type Op::params: launch(stream, config, "
                "op, {a, b}).");
}

/// Returns the first error of an op's launch on any device: those of validate(), and a block of incomplete warps, whose
/// shuffles would lack partners.
template <class Op>
GIWA_HOST_DEVICE constexpr status validate_op(const launch_config& c) {
  if (const status s = validate(c); !s.ok()) return s;
  if (c.block.count() > Op::max_threads)
    return status::invalid("block", "a block must have at most the op's max_threads", bound::at_most, Op::max_threads,
                           c.block.count());
  if (c.block.count() % launch_limits::warp_threads != 0)
    return status::invalid("block", "the number of threads of an op's block must be whole warps", bound::multiple_of,
                           launch_limits::warp_threads, c.block.count());
  if (c.shared_bytes != 0)
    return status::invalid("shared_bytes", "the shared memory of an op is its shared_storage; leave this out",
                           bound::exactly, 0, c.shared_bytes);
  return {};
}

}  // namespace detail

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
/// Runs an op on the CPU with the block structure of a GPU: every thread of a block, its barriers, shuffles, votes, atomics
/// and shared memory, one block after the other, always in the same order. Returns when all blocks are done. For tests
/// and debuggers, not for speed. An exception of the body reaches the caller. A grid without blocks runs nothing.
///
/// Parameters:
///   - config: as on a GPU
///   - op: the kernel
///   - params: its parameters, Op::params
///
/// Errors: those of a launch on a GPU, a barrier that some threads do not reach, a shuffle or vote that some lanes do not
/// reach, clusters (not supported), and too little host memory.
template <class Op>
status launch(host_t, const launch_config& config, const Op& op, const typename Op::params& params) {
  detail::require_op<Op>();
  static_assert(detail::defined<detail::host_executor<Op>>,
                "giwa::launch(giwa::host, ...) needs #include <giwa/host_executor.cuh>.");
  if (const status s = detail::validate_op<Op>(config); !s.ok()) return s;
  if (config.grid.count() == 0) return {};
  return detail::host_executor<Op>::run(config, op, params);
}

#if !defined(GIWA_DOXYGEN)  // calls that do not compile, and the reason
#if !defined(__CUDACC__)
template <class Stream, class Kernel, class... Arguments>
  requires(!stdlib::is_same_v<Stream, host_t>)
status launch(const Stream&, const launch_config&, const Kernel&, const Arguments&...) {
  static_assert(detail::always_false<Stream>,
                "giwa::launch: a launch on a stream needs nvcc: compile this file as CUDA, or pass giwa::host.");
  return {};
}
#endif

template <class Op, class... Arguments>
  requires(stdlib::is_class_v<Op> && !detail::params_for<Op, Arguments...>)
status launch(host_t, const launch_config&, const Op&, const Arguments&...) {
  detail::refuse_params<Op>();
  return {};
}

template <class R, class... Arguments>
status launch(const result<R>&, const launch_config&, const Arguments&...) {
  static_assert(detail::always_false<R>,
                "giwa::launch: the first argument is a result: giwa::throw_if_failed(s) is its stream.");
  return {};
}

template <class... Arguments>
status launch(const launch_config&, const Arguments&...) {
  static_assert(detail::always_false<Arguments...>,
                "giwa::launch: pass a stream or giwa::host as the first argument: launch(stream, config, ...).");
  return {};
}
#endif
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
