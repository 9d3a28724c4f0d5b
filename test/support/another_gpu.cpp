// SPDX-License-Identifier: MIT
// Linked into GPU tests: what CUDA's runtime answers and refuses is what it would on the GPU that GIWA_TEST_AS names. The linker puts
// each __wrap_ in the place of the function (--wrap in test/CMakeLists.txt); without that variable they only pass calls on.
#include "support/another_gpu.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

// In CUDA 12 the function of this name is the second version.
#if CUDART_VERSION < 13000
#define __real_cudaGetDeviceProperties __real_cudaGetDeviceProperties_v2
#define __wrap_cudaGetDeviceProperties __wrap_cudaGetDeviceProperties_v2
#endif

namespace giwa_test {

thread_local int processors_of_test = 0;

const gpu_limits& gpu_of_test() {
  static const gpu_limits found = [] {
    const char* const name = std::getenv("GIWA_TEST_AS");
    if (name == nullptr || *name == '\0') return gpu_limits{};
    const int capability = static_cast<int>(std::atof(name) * 10 + 0.5);
    for (const gpu_limits& gpu : known_gpus)
      if (gpu.capability == capability) {
        std::fprintf(stderr, "as a GPU of compute capability %s: %d KB of shared memory, %d multiprocessors\n", name,
                     gpu.block_kb, gpu.multiprocessors);
        return gpu;
      }
    std::fprintf(stderr, "GIWA_TEST_AS=%s: another_gpu.hpp knows no such GPU\n", name);
    std::exit(1);
  }();
  return found;
}

namespace {

bool is_another() { return gpu_of_test().capability != 0; }
std::size_t kib(int n) { return static_cast<std::size_t>(n) << 10; }

}  // namespace
}  // namespace giwa_test

using giwa_test::gpu_of_test;
using giwa_test::is_another;
using giwa_test::kib;

extern "C" {

cudaError_t __real_cudaDeviceGetAttribute(int*, cudaDeviceAttr, int);
cudaError_t __real_cudaFuncGetAttributes(cudaFuncAttributes*, const void*);
cudaError_t __real_cudaFuncSetAttribute(const void*, cudaFuncAttribute, int);
cudaError_t __real_cudaGetDeviceProperties(cudaDeviceProp*, int);
cudaError_t __real_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, const void*, int, std::size_t);
cudaError_t __real_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int*, const void*, int, std::size_t,
                                                                          unsigned);
cudaError_t __real_cudaOccupancyMaxActiveClusters(int*, const void*, const cudaLaunchConfig_t*);
cudaError_t __real_cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t);
cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**);

cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  const cudaError_t error = __real_cudaDeviceGetAttribute(value, which, device);
  if (error != cudaSuccess) return error;
  if (is_another()) {
    const giwa_test::gpu_limits& gpu = gpu_of_test();
    switch (which) {
      case cudaDevAttrComputeCapabilityMajor: *value = gpu.capability / 10; break;
      case cudaDevAttrComputeCapabilityMinor: *value = gpu.capability % 10; break;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = gpu.block_kb << 10; break;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = gpu.shared_kb << 10; break;
      case cudaDevAttrMaxThreadsPerMultiProcessor: *value = gpu.threads; break;
      case cudaDevAttrMaxBlocksPerMultiprocessor: *value = gpu.blocks; break;
      case cudaDevAttrMultiProcessorCount: *value = gpu.multiprocessors; break;
      case cudaDevAttrClusterLaunch: *value = gpu.capability >= 90 ? 1 : 0; break;
      default: break;
    }
  }
  if (which == cudaDevAttrMultiProcessorCount && giwa_test::processors_of_test > 0)
    *value = giwa_test::processors_of_test;
  return error;
}

// The code is that of the GPU, as far as tests ask.
cudaError_t __wrap_cudaFuncGetAttributes(cudaFuncAttributes* to, const void* kernel) {
  const cudaError_t error = __real_cudaFuncGetAttributes(to, kernel);
  if (error == cudaSuccess && is_another()) to->binaryVersion = gpu_of_test().capability;
  return error;
}

cudaError_t __wrap_cudaGetDeviceProperties(cudaDeviceProp* to, int device) {
  const cudaError_t error = __real_cudaGetDeviceProperties(to, device);
  if (error != cudaSuccess || !is_another()) return error;
  const giwa_test::gpu_limits& gpu = gpu_of_test();
  to->major = gpu.capability / 10, to->minor = gpu.capability % 10;
  to->sharedMemPerBlockOptin = kib(gpu.block_kb), to->sharedMemPerMultiprocessor = kib(gpu.shared_kb);
  to->maxThreadsPerMultiProcessor = gpu.threads, to->maxBlocksPerMultiProcessor = gpu.blocks;
  to->multiProcessorCount = gpu.multiprocessors, to->clusterLaunch = gpu.capability >= 90 ? 1 : 0;
  return error;
}

// A block's static and dynamic shared memory must fit.
static bool fits(const void* kernel, std::size_t dynamic) {
  cudaFuncAttributes f{};
  return __real_cudaFuncGetAttributes(&f, kernel) == cudaSuccess &&
         f.sharedSizeBytes + dynamic <= kib(gpu_of_test().block_kb);
}

cudaError_t __wrap_cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute which, int value) {
  if (is_another() && which == cudaFuncAttributeMaxDynamicSharedMemorySize &&
      !fits(kernel, static_cast<std::size_t>(value)))
    return cudaErrorInvalidValue;
  return __real_cudaFuncSetAttribute(kernel, which, value);
}

// Fewer blocks, where the other GPU has room for fewer.
static cudaError_t limit_blocks(int* blocks, const void* kernel, int threads, std::size_t dynamic) {
  const giwa_test::gpu_limits& gpu = gpu_of_test();
  cudaFuncAttributes f{};
  if (const cudaError_t failed = __real_cudaFuncGetAttributes(&f, kernel); failed != cudaSuccess) return failed;
  const std::size_t of_block = f.sharedSizeBytes + dynamic + kib(gpu.reserved_kb);
  const std::size_t by_shared = of_block == 0 ? std::size_t{64} : kib(gpu.shared_kb) / of_block;
  const int by_threads = gpu.threads / ((threads + 31) / 32 * 32);
  *blocks = fits(kernel, dynamic) ? std::min({*blocks, static_cast<int>(by_shared), by_threads, gpu.blocks}) : 0;
  return cudaSuccess;
}

cudaError_t __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                                 std::size_t dynamic) {
  const cudaError_t error = __real_cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, dynamic);
  return error == cudaSuccess && is_another() ? limit_blocks(blocks, kernel, threads, dynamic) : error;
}

// What the overload for a kernel by name calls.
cudaError_t __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel, int threads,
                                                                          std::size_t dynamic, unsigned flags) {
  const cudaError_t error =
      __real_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, dynamic, flags);
  return error == cudaSuccess && is_another() ? limit_blocks(blocks, kernel, threads, dynamic) : error;
}

cudaError_t __wrap_cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel, const cudaLaunchConfig_t* c) {
  if (is_another() && gpu_of_test().capability < 90) return cudaErrorNotSupported;
  return __real_cudaOccupancyMaxActiveClusters(clusters, kernel, c);
}

cudaError_t __wrap_cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** parameters, std::size_t dynamic,
                                    cudaStream_t s) {
  if (is_another() && !fits(kernel, dynamic)) return cudaErrorInvalidValue;
  return __real_cudaLaunchKernel(kernel, grid, block, parameters, dynamic, s);
}

// Clusters and dependent launches are Hopper's. Code for an older GPU does not wait for the kernel before it, so it must not be
// launched as dependent on any GPU; what an older GPU makes of such a launch CUDA does not say.
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* kernel, void** parameters) {
  if (!is_another()) return __real_cudaLaunchKernelExC(c, kernel, parameters);
  const giwa_test::gpu_limits& gpu = gpu_of_test();
  if (!fits(kernel, c->dynamicSmemBytes)) return cudaErrorInvalidValue;
  cudaFuncAttributes f{};
  if (const cudaError_t failed = __real_cudaFuncGetAttributes(&f, kernel); failed != cudaSuccess) return failed;
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    const cudaLaunchAttribute& a = c->attrs[i];
    const bool clustered =
        a.id == cudaLaunchAttributeClusterDimension && a.val.clusterDim.x * a.val.clusterDim.y * a.val.clusterDim.z > 1;
    const bool dependent =
        a.id == cudaLaunchAttributeProgrammaticStreamSerialization && a.val.programmaticStreamSerializationAllowed != 0;
    if ((clustered && gpu.capability < 90) || (dependent && f.ptxVersion < 90)) return cudaErrorNotSupported;
    if (a.id == cudaLaunchAttributeCooperative && a.val.cooperative != 0) {
      int blocks = 0;
      const int threads = static_cast<int>(c->blockDim.x * c->blockDim.y * c->blockDim.z);
      const cudaError_t failed =
          __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, c->dynamicSmemBytes);
      if (failed != cudaSuccess) return failed;
      const auto most = static_cast<unsigned long long>(blocks) * static_cast<unsigned long long>(gpu.multiprocessors);
      if (static_cast<unsigned long long>(c->gridDim.x) * c->gridDim.y * c->gridDim.z > most)
        return cudaErrorCooperativeLaunchTooLarge;
    }
  }
  return __real_cudaLaunchKernelExC(c, kernel, parameters);
}

}  // extern "C"
