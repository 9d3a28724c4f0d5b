// SPDX-License-Identifier: MIT
// Linked into a test that runs kernels: says why there is no GPU, if there is none.
#include <cuda_runtime_api.h>

namespace giwa_test {

const char* reason_to_skip() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count > 0 ? nullptr : "cudaGetDeviceCount found none";
}

}  // namespace giwa_test
