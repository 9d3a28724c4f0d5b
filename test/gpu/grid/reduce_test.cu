// SPDX-License-Identifier: MIT
// Reductions and scans of warps and blocks on a GPU: what the host executor computes, with the same bits.
#include <giwa/grid.cuh>
#include <giwa/host_executor.cuh>

#include "host/grid/reduce_cases.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"

using namespace giwa_test;

TEST_CASE("every thread gets the reduction and the scan of its warp and block, as on the host") {
  const giwa::stream s = new_stream();
  for (int warps = 1; warps <= 32; ++warps) {
    const int blocks = 40, threads = 32 * warps;
    const auto all = static_cast<std::size_t>(blocks * threads);
    const gpu_array<reduced> on_gpu(all);
    REQUIRE(giwa::launch(s, {.grid = blocks, .block = threads}, reduce_op{}, {on_gpu.data()}).ok());
    REQUIRE(giwa::synchronize(s).ok());
    const std::vector<reduced> out = on_gpu.to_host();
    std::vector<reduced> host(all);
    REQUIRE(giwa::launch(giwa::host, {.grid = blocks, .block = threads}, reduce_op{}, {host.data()}).ok());
    CAPTURE(warps);
    CHECK(wrong_reductions(out, threads) == 0);
    std::size_t other = 0;
    for (std::size_t i = 0; i < all; ++i) other += out[i].sum == host[i].sum ? 0 : 1;
    CHECK(other == 0);
  }
}
