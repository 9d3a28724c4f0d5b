// SPDX-License-Identifier: MIT
// The product of docs/tile.md, from the page: exact on integers, on sizes that are no multiples of a tile, many times over.
#include "wgmma_snippet.cuh"

#include <vector>

#include "support/hopper.cuh"
#include "support/random.hpp"

using giwa::fp16, giwa::int64;
using giwa_test::gpu_array;

namespace {

void check(int64 m, int64 n, int64 k, int repeats) {
  CAPTURE(m, n, k);
  giwa_test::random_sequence random(static_cast<giwa::uint64>(m + 7 * n + 31 * k));
  const auto integers = [&](int64 count) {
    std::vector<fp16> v;
    for (int64 i = 0; i < count; ++i) v.push_back(giwa::convert<fp16>{}(static_cast<float>(random.below(7) - 3)));
    return v;
  };
  const std::vector<fp16> a = integers(m * k), b = integers(k * n);
  const auto at = [](const std::vector<fp16>& x, int64 i) {
    return giwa::convert<float>{}(x[static_cast<std::size_t>(i)]);
  };
  std::vector<float> expected(static_cast<std::size_t>(m * n), 0.0f);
  for (int64 row = 0; row < m; ++row)
    for (int64 i = 0; i < k; ++i)
      for (int64 column = 0; column < n; ++column)
        expected[static_cast<std::size_t>(row * n + column)] += at(a, row * k + i) * at(b, i * n + column);

  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<fp16> a_gpu(a), b_gpu(b);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const gpu_array<float> c(expected.size());
    const giwa::status state = product(s, {{a_gpu.data(), {m, k}}, {b_gpu.data(), {k, n}}, {c.data(), {m, n}}});
    INFO(giwa::format_status(state).c_str());
    REQUIRE(state.ok());
    REQUIRE(giwa::synchronize(s).ok());
    REQUIRE(c.to_host() == expected);
  }
}

}  // namespace

TEST_CASE("the product of docs/tile.md is exact on integers") {
  if (!giwa_test::has_wgmma()) return;
  check(64, 128, 64, 20);
  check(1, 1, 1, 3);
  check(65, 129, 65, 3);
  check(200, 333, 500, 20);
  check(64, 128, 1024, 20);
  check(70, 5, 0, 1);
}
