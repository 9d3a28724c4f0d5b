// SPDX-License-Identifier: MIT
// Occupancy: how many blocks of a kernel run at once, and launch configurations that follow from it.
#ifndef GIWA_GRID_OCCUPANCY_HPP
#define GIWA_GRID_OCCUPANCY_HPP

#include <giwa/device/properties.hpp>
#include <giwa/grid/launch_config.hpp>

#include <cuda.h>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// What a launch asks about a kernel on the current GPU.
struct kernel_attributes {
  int registers = 0;       // of a thread
  int ptx = 0;             // the architecture of the PTX that the code comes from
  int static_shared = 0;   // bytes
  int dynamic_shared = 0;  // bytes, the present limit
};

/// Asks the driver, which takes 0.2 us in all; cudaFuncGetAttributes takes 0.5 us (H200, 2026-11-23).
/// Returns false where the driver does not answer, as before the first use of CUDA.
inline bool ask_driver(kernel_attributes& to, const void* kernel) {
  cudaKernel_t handle = nullptr;
  int device = 0;
  if (!consume(cudaGetKernel(&handle, kernel)).ok() || !consume(cudaGetDevice(&device)).ok()) return false;
  const result<void*> found = driver_function("cuKernelGetAttribute");
  if (!found.ok() || found.value == nullptr) return false;
  const auto ask = [&](int& value, CUfunction_attribute which) {
    const auto get = reinterpret_cast<decltype(&cuKernelGetAttribute)>(found.value);
    return get(&value, which, reinterpret_cast<CUkernel>(handle), device) == CUDA_SUCCESS;
  };
  return ask(to.registers, CU_FUNC_ATTRIBUTE_NUM_REGS) && ask(to.ptx, CU_FUNC_ATTRIBUTE_PTX_VERSION) &&
         ask(to.static_shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) &&
         ask(to.dynamic_shared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
}
inline result<kernel_attributes> attributes_of(const void* kernel) {
  kernel_attributes a;
  if (ask_driver(a, kernel)) return {a, {}};
  cudaFuncAttributes f{};
  const status s = consume(cudaFuncGetAttributes(&f, kernel), "kernel");
  return {{f.numRegs, f.ptxVersion, static_cast<int>(f.sharedSizeBytes), f.maxDynamicSharedSizeBytes}, s};
}

/// Returns whether a block of the kernel may have `bytes` of dynamic shared memory on the current GPU, and raises the limit
/// if necessary: by default static and dynamic shared memory together have 48 KB. Always raises it to the maximum of the
/// GPU, so that no call lowers the limit of another one.
inline result<bool> allow_shared_bytes(const void* kernel, int64 bytes, const kernel_attributes& a) {
  constexpr int64 by_default = 48 << 10;
  if (bytes + a.static_shared <= by_default) return {true, {}};
  if (a.dynamic_shared > by_default && bytes <= a.dynamic_shared) return {true, {}};
  const result<int> device = current_device();
  if (!device.ok()) return {false, device.state};
  const result<int64> most = attribute(device.value, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (!most.ok()) return {false, most.state};
  const int64 dynamic = most.value - a.static_shared;
  if (bytes > dynamic) return {false, {}};
  const status s =
      consume(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(dynamic)));
  return {s.ok(), s};
}
/// The same with a query of the attributes, only for kernels with dynamic shared memory.
inline result<bool> allow_shared_bytes(const void* kernel, int64 bytes) {
  if (bytes == 0) return {true, {}};
  const result<kernel_attributes> a = attributes_of(kernel);
  return a.ok() ? allow_shared_bytes(kernel, bytes, a.value) : result<bool>{false, a.state};
}

/// Returns how many blocks of a kernel a multiprocessor holds at once; 0 if none fits.
inline result<int> resident_blocks(const void* kernel, int threads, int64 shared_bytes) {
  const result<bool> fits = allow_shared_bytes(kernel, shared_bytes);
  if (!fits.value) return {0, fits.state};
  int blocks = 0;
  const status s = consume(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads,
                                                                         static_cast<stdlib::size_t>(shared_bytes)),
                           "kernel");
  return {s.ok() ? blocks : 0, s};
}

/// Returns the block size, a multiple of 32, with which the most threads are resident at once; the largest among equals.
inline result<int> best_block(const void* kernel, int64 shared_bytes) {
  cudaFuncAttributes f{};
  if (const status s = consume(cudaFuncGetAttributes(&f, kernel), "kernel"); !s.ok()) return {0, s};
  int best = 0, most = 0;
  for (int threads = f.maxThreadsPerBlock / 32 * 32; threads >= 32; threads -= 32) {
    const result<int> blocks = resident_blocks(kernel, threads, shared_bytes);
    if (!blocks.ok()) return blocks;
    if (blocks.value * threads > most) {
      most = blocks.value * threads;
      best = threads;
    }
  }
  if (best == 0)
    return {0, status::invalid("shared_bytes", "no block of the kernel fits on a multiprocessor with so much")};
  return {best, {}};
}

}  // namespace detail

/// Returns how many blocks of a kernel fit on one multiprocessor of the current GPU at once; 0 if none fits. Launches nothing.
///
/// Parameters:
///   - kernel: the `__global__` function
///   - threads: of a block, 1 to 1024
///   - shared_bytes: dynamic shared memory of a block
///
/// Errors: `threads` or `shared_bytes` is out of range, and those of the runtime.
template <class... Parameters>
result<int> resident_blocks(void (*kernel)(Parameters...), int threads, int64 shared_bytes = 0) {
  if (threads < 1 || threads > launch_limits::block_threads)
    return {0, status::invalid("threads", "a block must have 1 to 1024 threads",
                               threads < 1 ? bound::at_least : bound::at_most,
                               threads < 1 ? 1 : launch_limits::block_threads, threads)};
  if (shared_bytes < 0)
    return {0, status::invalid("shared_bytes", "a size must not be negative", bound::at_least, 0, shared_bytes)};
  return detail::resident_blocks(reinterpret_cast<const void*>(kernel), threads, shared_bytes);
}

/// Returns a configuration with one thread for each of n elements: the block of the highest occupancy, and as many blocks as
/// cover n. Asks the current GPU; launches nothing.
///
/// Parameters:
///   - kernel: the `__global__` function
///   - n: elements, at least 1
///   - shared_bytes: dynamic shared memory of a block
///
/// Errors: n < 1, no block fits with `shared_bytes`, the grid would be too large, and those of the runtime.
template <class... Parameters>
result<launch_config> cover(void (*kernel)(Parameters...), int64 n, int64 shared_bytes = 0) {
  if (n < 1) return {{}, status::invalid("n", "there must be an element to launch for", bound::at_least, 1, n)};
  const result<int> threads = detail::best_block(reinterpret_cast<const void*>(kernel), shared_bytes);
  if (!threads.ok()) return {{}, threads.state};
  const launch_config c{.grid = ceil_div(n, threads.value), .block = threads.value, .shared_bytes = shared_bytes};
  return {c, validate(c)};
}

/// Returns a configuration for a kernel that distributes its work itself (a grid-stride loop, a cooperative grid): as many
/// blocks as the current GPU can run at once, times `waves`. Launches nothing.
///
/// Parameters:
///   - kernel: the `__global__` function
///   - waves: at least 1; 1 for a cooperative grid
///   - shared_bytes: dynamic shared memory of a block
///
/// Errors: waves < 1, no block fits with `shared_bytes`, the grid would be too large, and those of the runtime.
template <class... Parameters>
result<launch_config> fill_gpu(void (*kernel)(Parameters...), int waves = 1, int64 shared_bytes = 0) {
  if (waves < 1) return {{}, status::invalid("waves", "a count must be at least 1", bound::at_least, 1, waves)};
  const result<int> threads = detail::best_block(reinterpret_cast<const void*>(kernel), shared_bytes);
  if (!threads.ok()) return {{}, threads.state};
  const result<int> blocks = resident_blocks(kernel, threads.value, shared_bytes);
  if (!blocks.ok()) return {{}, blocks.state};
  const result<int> device = current_device();
  if (!device.ok()) return {{}, device.state};
  const result<int64> processors = detail::attribute(device.value, cudaDevAttrMultiProcessorCount);
  if (!processors.ok()) return {{}, processors.state};
  const launch_config c{
      .grid = processors.value * blocks.value * waves, .block = threads.value, .shared_bytes = shared_bytes};
  return {c, validate(c)};
}

}  // namespace giwa::inline GIWA_ABI

#endif
