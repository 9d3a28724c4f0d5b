// SPDX-License-Identifier: MIT
// elect_one: one lane of each warp, the same at every call.
#include <giwa/arch/elect.cuh>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa_test::gpu_array;

namespace {

template <class = void>
__global__ void __launch_bounds__(96) elect(int* elected) {
  for (int call = 0; call < 3; ++call)
    if (giwa::arch::elect_one()) atomicAdd(&elected[threadIdx.x], 1);
}

}  // namespace

TEST_CASE("one lane of each warp is elected, the same each time") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<int> elected_gpu(96, 0);
  elect<><<<1, 96, 0, s>>>(elected_gpu.data());
  giwa_test::check_cuda(cudaGetLastError());
  REQUIRE(giwa::synchronize(s).ok());
  const std::vector<int> elected = elected_gpu.to_host();
  for (std::size_t warp = 0; warp < 3; ++warp) {
    int lanes = 0;
    for (std::size_t lane = 0; lane < 32; ++lane) {
      CAPTURE(warp, lane);
      const int times = elected[32 * warp + lane];
      REQUIRE((times == 0 || times == 3));
      lanes += times == 3 ? 1 : 0;
    }
    REQUIRE(lanes == 1);
  }
}
