// SPDX-License-Identifier: MIT
// Each of two files built for different architectures launches its own code.
#include <cuda_runtime.h>

#include "parts.hpp"
#include "support/catch.hpp"

TEST_CASE("a launch runs the code of its own file") {
  int* architecture = nullptr;
  REQUIRE(cudaMallocManaged(&architecture, sizeof(int)) == cudaSuccess);
  int device = 0, major = 0;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess);

  if (major >= 8) {  // the driver compiles the PTX of compute_80 for any newer GPU
    REQUIRE(part_80::run(cudaStreamPerThread, architecture).ok());
    REQUIRE(cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess);
    CHECK(*architecture == 800);
  }
  if (major == 9) {
    REQUIRE(part_90a::run(cudaStreamPerThread, architecture).ok());
    REQUIRE(cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess);
    CHECK(*architecture == 900);
  } else {
    CHECK(part_90a::run(cudaStreamPerThread, architecture).code == giwa::status_code::no_kernel_image);
  }
  cudaFree(architecture);
}
