// SPDX-License-Identifier: MIT
// A kernel that lets the next one start, and writes its inputs long after that.
#ifndef GIWA_TEST_GPU_ATTENTION_LATE_COPIES_CUH
#define GIWA_TEST_GPU_ATTENTION_LATE_COPIES_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/grid/launch.cuh>

#include "support/gpu.cuh"

namespace giwa_test {

/// Memory that the kernel writes late.
struct late_copy {
  unsigned char* to = nullptr;
  const unsigned char* from = nullptr;
  std::size_t bytes = 0;
};
struct late_copies {
  late_copy of[8];
};

template <class T>
late_copy late(const gpu_array<T>& to, const gpu_array<T>& from) {
  return {reinterpret_cast<unsigned char*>(to.data()), reinterpret_cast<const unsigned char*>(from.data()), to.bytes()};
}

/// Copies after a while in which the next kernel runs up to its wait.
template <class = void>
__global__ void __launch_bounds__(256) copy_late(late_copies copies) {
  giwa::arch::launch_dependents();
  for (int i = 0; i < 100; ++i) __nanosleep(1000);
  for (const late_copy& c : copies.of)
    for (std::size_t i = threadIdx.x; i < c.bytes; i += blockDim.x) c.to[i] = c.from[i];
}

/// Launches it with as much shared memory as a block can have. After a kernel with less the next one does not begin early if it needs
/// more, because the multiprocessors have to divide their memory in another way (H200).
inline void launch_late_copies(cudaStream_t s, const late_copies& copies) {
  const int64 bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  giwa::throw_if_failed(giwa::launch(s, {.grid = 1, .block = 256, .shared_bytes = bytes}, copy_late<>, copies));
}

/// Reads before its wait what the kernel before it may still write.
template <class = void>
__global__ void __launch_bounds__(32) read_early(const int* from, int* seen) {
  if (threadIdx.x == 0) *seen = *from;
  giwa::arch::wait_for_previous_kernel();
}
/// Whether a kernel that reads too early sees old numbers after launch_late_copies(): without that, tests of late inputs test nothing.
/// One of 20 times, because a busy host may launch it late.
inline bool early_reads_are_seen() {
  const giwa::stream s = new_stream();
  const gpu_array<int> written(std::vector<int>{1});
  const int64 bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const giwa::launch_config dependent{.grid = 1, .block = 32, .shared_bytes = bytes, .dependent = true};
  for (int i = 0; i < 20; ++i) {  // the first launch of a kernel loads it, which may wait for what is running
    const gpu_array<int> word(1, 0), seen(1);
    launch_late_copies(s, {{late(word, written)}});
    giwa::throw_if_failed(giwa::launch(s, dependent, read_early<>, word.data(), seen.data()));
    giwa::throw_if_failed(giwa::synchronize(s));
    if (seen.to_host()[0] == 0) return true;
  }
  return false;
}
/// Whether the current GPU starts kernels early, and nothing like Compute Sanitizer runs them one by one.
inline bool kernels_start_early() { return capability() == 90 && !small_mode(); }

}  // namespace giwa_test

#endif
