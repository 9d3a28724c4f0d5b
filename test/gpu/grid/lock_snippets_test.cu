// SPDX-License-Identifier: MIT
// The kernels of docs/locks.md, from the page: nothing is lost under a lock, nor by compare-and-swap.
#include "lock_snippets.cuh"

#include <giwa/numeric/philox.hpp>

#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::int64;
using giwa_test::gpu_array;

TEST_CASE("a spin lock: one block at a time adds its row") {
  const int blocks = 3000, n = 300;
  std::vector<int> rows, expected(static_cast<std::size_t>(n), 0);
  for (int i = 0; i < blocks * n; ++i) {
    rows.push_back(i * 31 % 1009);
    expected[static_cast<std::size_t>(i % n)] += rows.back();
  }
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<int> rows_gpu(rows), total(static_cast<std::size_t>(n), 0);
  const gpu_array<spin_lock> lock(1, 0);
  REQUIRE(
      giwa::launch(s, {.grid = blocks, .block = 128}, add_rows, lock.data(), rows_gpu.data(), total.data(), n).ok());
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(total.to_host() == expected);
  CHECK(lock.to_host()[0].taken == 0);
}

TEST_CASE("a spin lock: lanes of a warp want the same lock") {
  for (const int buckets : {1, 3, 32, 1000}) {
    CAPTURE(buckets);
    const int n = 20003;
    std::vector<int> numbers;
    std::vector<bucket> expected(static_cast<std::size_t>(buckets), bucket{{0}, 0, 0});
    for (int i = 0; i < n; ++i) {
      numbers.push_back(static_cast<int>(int64{i} * i % 7919));
      bucket& b = expected[static_cast<std::size_t>(numbers.back() % buckets)];
      ++b.count;
      b.sum += numbers.back();
    }
    const giwa::stream s = giwa_test::new_stream();
    const gpu_array<int> numbers_gpu(numbers);
    const gpu_array<bucket> got_gpu(expected.size(), 0);
    REQUIRE(giwa::launch(s, {.grid = giwa::ceil_div(n, 256), .block = 256}, collect, got_gpu.data(), buckets,
                         numbers_gpu.data(), n)
                .ok());
    REQUIRE(giwa::synchronize(s).ok());
    const std::vector<bucket> got = got_gpu.to_host();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      wrong += got[i].count == expected[i].count && got[i].sum == expected[i].sum && got[i].lock.taken == 0 ? 0 : 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("a maximum of floats by compare-and-swap, on the GPU and on the host") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto largest = [&](const std::vector<float>& in) {
    const unsigned start = __builtin_bit_cast(unsigned, -inf);
    unsigned bits = start;
    const auto n = static_cast<int64>(in.size());
    REQUIRE(on_cpu({in.data(), n, &bits}).ok());
    const giwa::stream s = giwa_test::new_stream();
    const gpu_array<float> in_gpu(in);
    const gpu_array<unsigned> bits_gpu(std::vector<unsigned>{start});
    REQUIRE(on_gpu(s, {in_gpu.data(), n, bits_gpu.data()}).ok());
    REQUIRE(giwa::synchronize(s).ok());
    REQUIRE(bits_gpu.to_host()[0] == bits);
    return __builtin_bit_cast(float, bits);
  };
  const giwa::philox random{17};
  for (const float offset : {0.0f, -0.5f, -1.0f}) {  // of both signs, and all negative
    std::vector<float> x;
    for (giwa::uint64 i = 0; i < 40000; ++i) x.push_back(random.uniform<float>(i) + offset);
    float expected = -inf;
    for (const float v : x) expected = v > expected ? v : expected;
    CHECK(largest(x) == expected);
    x[12345] = nan;
    x[39999] = 3;
    CHECK(largest(x) == 3);
    x[7] = inf;
    CHECK(largest(x) == inf);
  }
  CHECK(largest({}) == -inf);
  CHECK(largest({nan}) == -inf);
  CHECK(largest({-2, -7}) == -2);
}
