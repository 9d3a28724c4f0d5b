// SPDX-License-Identifier: MIT
// A kernel that lets the next one start, and writes its inputs long after that.
#ifndef GIWA_TEST_GPU_ATTENTION_LATE_COPIES_CUH
#define GIWA_TEST_GPU_ATTENTION_LATE_COPIES_CUH

#include <giwa/arch/dependent_launch.cuh>

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
  check_cuda(cudaFuncSetAttribute(copy_late<>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  copy_late<><<<1, 256, static_cast<std::size_t>(bytes), s>>>(copies);
  check_cuda(cudaGetLastError());
}

}  // namespace giwa_test

#endif
