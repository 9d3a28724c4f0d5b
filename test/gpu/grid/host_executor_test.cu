// SPDX-License-Identifier: MIT
// One op, two machines: what the host executor computes is what the GPU computes, bit for bit.
#include <giwa/grid.cuh>
#include <giwa/host_executor.cuh>

#include <cstring>
#include <numeric>
#include <vector>

#include "host/grid/ops.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/same_bits.hpp"

using giwa::host;
using giwa::launch;
using giwa::launch_config;
using giwa::uint32;
using namespace giwa_test;

namespace {

template <class T>
void check_shuffles() {
  using op = shuffle_op<T>;
  std::vector<T> out(4 * op::operands * 32), own(4 * 32);
  const gpu_array<T> gpu_out(out.size()), gpu_own(own.size());
  const auto s = new_stream();
  REQUIRE(launch(host, {.block = 32}, op{}, {out.data(), own.data()}).ok());
  REQUIRE(launch(s, {.block = 32}, op{}, {gpu_out.data(), gpu_own.data()}).ok());
  CHECK(same_bits(out, gpu_out.to_host()));
  CHECK(same_bits(own, gpu_own.to_host()));
}

}  // namespace

TEST_CASE("shuffles of every kind, operand and size agree") {
  check_shuffles<char>();
  check_shuffles<float>();
  check_shuffles<double>();
}

TEST_CASE("votes agree") {
  const std::vector<uint32> pattern = {0u, ~0u, 1u, 1u << 31, 0xdeadbeefu};
  const std::size_t threads = 32 * 5;
  const launch_config config = {.block = 32 * 5};
  std::vector<uint32> ballot(threads);
  std::vector<int> any(threads), all(threads);
  const gpu_array<uint32> gpu_pattern(pattern), gpu_ballot(threads);
  const gpu_array<int> gpu_any(threads), gpu_all(threads);
  const auto s = new_stream();
  REQUIRE(launch(host, config, vote_op{}, {pattern.data(), ballot.data(), any.data(), all.data()}).ok());
  REQUIRE(launch(s, config, vote_op{}, {gpu_pattern.data(), gpu_ballot.data(), gpu_any.data(), gpu_all.data()}).ok());
  CHECK(ballot == gpu_ballot.to_host());
  CHECK(any == gpu_any.to_host());
  CHECK(all == gpu_all.to_host());
}

TEST_CASE("sums, scans and transpositions agree") {
  const auto s = new_stream();
  std::vector<int> in(1000), sums(4);
  std::iota(in.begin(), in.end(), -300);
  const gpu_array<int> gpu_in(in), gpu_sums(sums.size());
  REQUIRE(launch(host, {.grid = 4, .block = 256}, block_sum_op{}, {in.data(), sums.data(), 1000}).ok());
  REQUIRE(launch(s, {.grid = 4, .block = 256}, block_sum_op{}, {gpu_in.data(), gpu_sums.data(), 1000}).ok());
  CHECK(sums == gpu_sums.to_host());

  std::vector<int64> values(3 * 512), scanned(values.size());
  std::iota(values.begin(), values.end(), int64{1} << 40);
  const gpu_array<int64> gpu_values(values), gpu_scanned(values.size());
  REQUIRE(launch(host, {.grid = 3, .block = 512}, block_scan_op{}, {values.data(), scanned.data()}).ok());
  REQUIRE(launch(s, {.grid = 3, .block = 512}, block_scan_op{}, {gpu_values.data(), gpu_scanned.data()}).ok());
  CHECK(scanned == gpu_scanned.to_host());

  const int rows = 70, columns = 45;
  std::vector<float> matrix(rows * columns), turned(matrix.size());
  std::iota(matrix.begin(), matrix.end(), 0.f);
  const gpu_array<float> gpu_matrix(matrix), gpu_turned(matrix.size());
  const launch_config tiles = {.grid = {2, 3}, .block = {32, 8}};
  REQUIRE(launch(host, tiles, transpose_op{}, {matrix.data(), turned.data(), rows, columns}).ok());
  REQUIRE(launch(s, tiles, transpose_op{}, {gpu_matrix.data(), gpu_turned.data(), rows, columns}).ok());
  CHECK(turned == gpu_turned.to_host());
}

TEST_CASE("threads of every shape have the same places") {
  const auto s = new_stream();
  for (const launch_config& config :
       {launch_config{.grid = {3, 2, 2}, .block = {8, 4, 2}}, launch_config{.grid = 5, .block = 96},
        launch_config{.grid = {1, 4}, .block = {1, 1, 64}}}) {
    const auto threads = static_cast<std::size_t>(config.grid.count() * config.block.count());
    std::vector<who_op::record> out(threads);
    const gpu_array<who_op::record> gpu_out(threads, 0);
    REQUIRE(launch(host, config, who_op{}, {out.data()}).ok());
    REQUIRE(launch(s, config, who_op{}, {gpu_out.data()}).ok());
    CHECK(same_bits(out, gpu_out.to_host()));
  }
}

TEST_CASE("atomics agree where their order does not matter") {
  const auto s = new_stream();
  struct totals {
    int histogram[16] = {};
    float sum = 0;
    double sum64 = 0;
    int smallest = 1 << 30, last = -1, taken = -1, winners = 0;
    unsigned largest = 0;
  };
  const auto params = [](const int* in, totals* t) {
    return atomics_op::params{in,           1000,        t->histogram, &t->sum,   &t->sum64,
                              &t->smallest, &t->largest, &t->last,     &t->taken, &t->winners};
  };
  std::vector<int> in(1000);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>((i * 7919 + 3) % 1009);
  std::vector<totals> out(1);
  const gpu_array<int> gpu_in(in);
  const gpu_array<totals> gpu_out(out);
  REQUIRE(launch(host, {.grid = 3, .block = 128}, atomics_op{}, params(in.data(), out.data())).ok());
  REQUIRE(launch(s, {.grid = 3, .block = 128}, atomics_op{}, params(gpu_in.data(), gpu_out.data())).ok());
  const totals a = out[0], b = gpu_out.to_host()[0];
  CHECK(std::memcmp(a.histogram, b.histogram, sizeof a.histogram) == 0);
  CHECK(a.sum == b.sum);  // integers below 2^24: exact in any order
  CHECK(a.sum64 == b.sum64);
  CHECK(a.smallest == b.smallest);
  CHECK(a.largest == b.largest);
  CHECK(a.winners == b.winners);
}
