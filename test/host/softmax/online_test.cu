// SPDX-License-Identifier: MIT
// Online softmax on the host executor: every kind of row, masked tiles and empty rows.
#include <giwa/host_executor.cuh>

#include "online_cases.cuh"

using namespace giwa_test;

namespace {

struct on_the_host {
  template <class Op>
  bool run(const Op& op, const std::vector<float>& scores, int tiles, float scale_log2, online_results& r) const {
    return giwa::launch(giwa::host, {.block = Op::max_threads}, op,
                        {scores.data(), tiles, scale_log2, r.weights.data(), r.factors.data(), r.results.data(),
                         r.unequal.data()})
        .ok();
  }
};

}  // namespace

TEMPLATE_TEST_CASE("tiles of scores become their softmax on the host executor", "", (warp_map<16, 32>),
                   (warp_map<32, 16>), (warpgroup_map<16>), (thread_map<tile_shape<32, 64>, 8, 16, 2>),
                   (thread_map<tile_shape<32, 4>, 32, 1>)) {
  for (const int tiles : {1, 6}) check_online<online_op<TestType>>(on_the_host{}, tiles);
  check_factors_of_one<online_op<TestType>>(on_the_host{});
  check_large<online_op<TestType>>(on_the_host{});
  check_online<online_op<TestType, 8>>(on_the_host{}, 6);
  check_large<online_op<TestType, 8>>(on_the_host{});
  check_slack<online_op<TestType, 8>>(on_the_host{});
  check_without_maxima<TestType>(on_the_host{}, 6);
  check_merge<TestType, 0>(on_the_host{});
  check_merge<TestType, 8>(on_the_host{});
}

TEST_CASE("sums tell whether a row needs another maximum: of all rows none is above 2^slack, but for rounding") {
  using online = giwa::online_softmax<warp_map<16, 32>, 0, 8>;
  float sums[online::rows];
  const auto within = [&](int row, float sum) {
    for (float& x : sums) x = 1;
    sums[row] = sum;
    return online::within_slack(sums);
  };
  for (int row = 0; row < online::rows; ++row) {
    CHECK(within(row, 1));
    CHECK(within(row, 255));
    CHECK_FALSE(within(row, 256));
    CHECK_FALSE(within(row, HUGE_VALF));
    CHECK_FALSE(within(row, NAN));
  }
}
