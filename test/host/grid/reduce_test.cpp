// SPDX-License-Identifier: MIT
// Reductions and scans of warps and blocks on the host executor, for every number of warps.
#include "reduce_cases.hpp"

#include <giwa/grid/host_executor.hpp>

#include "support/catch.hpp"

using namespace giwa_test;

TEST_CASE("every thread gets the reduction and the scan of its warp and block") {
  for (int warps = 1; warps <= 32; ++warps) {
    std::vector<reduced> out(static_cast<std::size_t>(3 * 32 * warps));
    REQUIRE(giwa::launch(giwa::host, {.grid = 3, .block = 32 * warps}, reduce_op{}, {out.data()}).ok());
    CAPTURE(warps);
    CHECK(wrong_reductions(out, 32 * warps) == 0);
  }
}
