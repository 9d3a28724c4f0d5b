// SPDX-License-Identifier: MIT
// The host executor: the results of ops, the statuses for ops that break the rules, and exceptions.
#include "ops.hpp"
#include "support/catch2.hpp"

#include <giwa/grid/host_executor.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

using giwa::bound;
using giwa::dimensions;
using giwa::host;
using giwa::int64;
using giwa::launch;
using giwa::status;
using giwa::status_code;
using giwa::uint32;
using namespace giwa_test;

TEST_CASE("shared memory and barriers: the sum of a block") {
  const int threads = GENERATE(32, 64, 256, 1024);
  const int n = 3 * threads - 5;
  std::vector<int> in(static_cast<std::size_t>(n));
  std::iota(in.begin(), in.end(), 1);
  std::vector<int> out(3, -1);
  REQUIRE(launch(host, {.grid = 3, .block = threads}, block_sum_op{}, {in.data(), out.data(), n}).ok());
  CHECK(out[0] + out[1] + out[2] == n * (n + 1) / 2);
  CHECK(out[0] == threads * (threads + 1) / 2);
}

TEST_CASE("shuffles: the prefix sum of a block") {
  const int threads = GENERATE(32, 96, 512, 1024);
  std::vector<int64> in(static_cast<std::size_t>(2 * threads)), out(in.size(), -1);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int64>(i * i % 37) << 33;
  REQUIRE(launch(host, {.grid = 2, .block = threads}, block_scan_op{}, {in.data(), out.data()}).ok());
  int64 sum = 0;
  bool right = true;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (i == static_cast<std::size_t>(threads)) sum = 0;
    sum += in[i];
    right = right && out[i] == sum;
  }
  CHECK(right);
}

namespace {

struct three_words {
  uint32 word[3];
};

// The lane that a GPU reads: the operand counts modulo 32, and a source outside of the warp is the lane itself.
int source(int kind, int lane, int operand) {
  const int d = operand & 31;
  if (kind == 0) return d;
  if (kind == 1) return lane - d < 0 ? lane : lane - d;
  if (kind == 2) return lane + d > 31 ? lane : lane + d;
  return lane ^ d;
}

template <class T>
void check_shuffles() {
  using op = shuffle_op<T>;
  std::vector<T> out(4 * op::operands * 32), own(4 * 32);
  REQUIRE(launch(host, {.block = 32}, op{}, {out.data(), own.data()}).ok());
  int wrong = 0;
  const auto check = [&](const T& got, int lane) {
    const T expected = op::value_of(lane);
    wrong += std::memcmp(&got, &expected, sizeof(T)) != 0 ? 1 : 0;
  };
  for (int kind = 0; kind < 4; ++kind)
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < op::operands; ++i)
        check(out[static_cast<std::size_t>((kind * op::operands + i) * 32 + lane)],
              source(kind, lane, op::first_operand + i));
      check(own[static_cast<std::size_t>(kind * 32 + lane)], source(kind, lane, 7 * lane));
    }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("shuffles of every kind, operand and size") {
  check_shuffles<char>();
  check_shuffles<float>();
  check_shuffles<double>();
  check_shuffles<three_words>();
}

TEST_CASE("votes") {
  const std::vector<uint32> pattern = {0u, ~0u, 1u, 1u << 31, 0xdeadbeefu};
  const int threads = 32 * 5;
  std::vector<uint32> ballot(threads);
  std::vector<int> any(threads, -1), all(threads, -1);
  REQUIRE(launch(host, {.block = threads}, vote_op{}, {pattern.data(), ballot.data(), any.data(), all.data()}).ok());
  for (int i = 0; i < threads; ++i) {
    const uint32 expected = pattern[static_cast<std::size_t>(i / 32)];
    const auto t = static_cast<std::size_t>(i);
    REQUIRE(ballot[t] == expected);
    REQUIRE(any[t] == (expected != 0 ? 1 : 0));
    REQUIRE(all[t] == (expected == ~0u ? 1 : 0));
  }
}

TEST_CASE("atomics") {
  std::vector<int> in(1000);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>((i * 7919 + 3) % 1009);
  std::vector<int> histogram(16, 0), expected(16, 0);
  float sum = 0;
  double sum64 = 0;
  int smallest = 1 << 30, last = -1, taken = -1, winners = 0;
  unsigned largest = 0;
  REQUIRE(launch(host, {.grid = 3, .block = 128}, atomics_op{},
                 {in.data(), 1000, histogram.data(), &sum, &sum64, &smallest, &largest, &last, &taken, &winners})
              .ok());
  for (int x : in) ++expected[static_cast<std::size_t>(x % 16)];
  const int total = std::accumulate(in.begin(), in.end(), 0);
  CHECK(histogram == expected);
  CHECK(sum == static_cast<float>(total));
  CHECK(sum64 == static_cast<double>(total));
  CHECK(smallest == *std::min_element(in.begin(), in.end()));
  CHECK(static_cast<int>(largest) == *std::max_element(in.begin(), in.end()));
  CHECK((0 <= last && last < 128));
  CHECK((1 <= taken && taken <= 128));
  CHECK(winners == 1);
}

TEST_CASE("a barrier for the grid: a ring of all threads") {
  const int rounds = GENERATE(0, 1, 2, 11);
  for (const dimensions& grid : {dimensions{1}, {7}, {2, 3, 2}})
    for (const int64 step : {1, 32, 65}) {
      const auto n = static_cast<std::size_t>(grid.count() * 64);
      std::vector<int> now(n), next(n);
      for (std::size_t i = 0; i < n; ++i) now[i] = static_cast<int>(1000 * i);
      giwa::grid_barrier barrier;
      for (int launches = 0; launches < 2; ++launches) {
        const std::vector<int> before = now;
        REQUIRE(launch(host, {.grid = grid, .block = {16, 4}, .cooperative = true}, ring_op{},
                       {now.data(), next.data(), rounds, step, &barrier})
                    .ok());
        if (rounds % 2 != 0) now.swap(next);
        bool right = true;
        for (std::size_t i = 0; i < n; ++i)
          right = right && now[i] == before[(i + static_cast<std::size_t>(step * rounds)) % n] + rounds;
        CHECK(right);
      }
    }
}

TEST_CASE("a transposition through tiles in shared memory") {
  const int rows = 70, columns = 45;
  std::vector<float> in(rows * columns), out(in.size(), -1.f);
  std::iota(in.begin(), in.end(), 0.f);
  REQUIRE(
      launch(host, {.grid = {2, 3}, .block = {32, 8}}, transpose_op{}, {in.data(), out.data(), rows, columns}).ok());
  int wrong = 0;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) wrong += out[c * rows + r] != in[r * columns + c] ? 1 : 0;
  CHECK(wrong == 0);
}

TEST_CASE("every thread of every shape knows who it is") {
  const dimensions block = GENERATE(dimensions{32}, dimensions{1024}, dimensions{8, 12}, dimensions{1, 64},
                                    dimensions{4, 2, 8}, dimensions{1, 1, 64}, dimensions{32, 3, 2});
  const dimensions grid =
      GENERATE(dimensions{1}, dimensions{5}, dimensions{2, 3}, dimensions{1, 1, 3}, dimensions{3, 2, 2});
  const int64 threads = block.count() * grid.count();
  std::vector<who_op::record> out(static_cast<std::size_t>(threads));
  REQUIRE(launch(host, {.grid = grid, .block = block}, who_op{}, {out.data()}).ok());

  bool right = true;
  std::size_t at = 0;
  for (int64 bz = 0; bz < grid.z; ++bz)
    for (int64 by = 0; by < grid.y; ++by)
      for (int64 bx = 0; bx < grid.x; ++bx)
        for (int64 z = 0; z < block.z; ++z)
          for (int64 y = 0; y < block.y; ++y)
            for (int64 x = 0; x < block.x; ++x, ++at) {
              const who_op::record& r = out[at];
              const auto same = [](const int64* a, int64 first, int64 second, int64 third) {
                return a[0] == first && a[1] == second && a[2] == third;
              };
              const int64 rank = (z * block.y + y) * block.x + x;
              right = right && r.visits == 1 && r.rank == rank && r.size == block.count() && r.warp == rank / 32 &&
                      r.lane == rank % 32 && r.block_rank == (bz * grid.y + by) * grid.x + bx &&
                      r.block_count == grid.count() && same(r.thread_index, z, y, x) &&
                      same(r.thread_extents, block.z, block.y, block.x) && same(r.block_index, bz, by, bx) &&
                      same(r.block_extents, grid.z, grid.y, grid.x);
            }
  CHECK(right);
}

namespace {

// An op whose body is a callable f(block, shared); for host tests only.
template <class F, class Shared = giwa::no_shared_storage>
struct body_op : op_limits {
  struct params {
    const F* f;
  };
  using shared_storage = Shared;
  template <class Block>
  void operator()(Block block, const params& p, shared_storage& shared) const {
    (*p.f)(block, shared);
  }
};

template <class Shared = giwa::no_shared_storage, class F>
status run(giwa::launch_config config, const F& f) {
  return launch(host, config, body_op<F, Shared>{}, {&f});
}

bool says(const status& s, const char* words) { return std::string(s.message).find(words) != std::string::npos; }

void check_breach(const status& s, const char* words, int64 expected, int64 got) {
  INFO(s.message);
  CHECK(s.code == status_code::invalid_argument);
  CHECK(std::string(s.argument) == "op");
  CHECK(says(s, words));
  CHECK(s.relation == bound::exactly);
  CHECK(s.expected == expected);
  CHECK(s.got == got);
}

const char* const by_some = "all threads of the block must reach a barrier";
const char* const by_some_lanes = "all lanes of a warp must reach the same";

}  // namespace

TEST_CASE("threads run in the same order every time, blocks in grid order") {
  const auto trace = [] {
    std::vector<int64> order;
    REQUIRE(run({.grid = {2, 2, 2}, .block = 64}, [&](auto block, auto&) {
              order.push_back(block.block_rank() * 1000 + block.rank());
              block.sync();
              if (block.warp() == 1) block.sync_warp();
              order.push_back(block.block_rank() * 1000 + block.rank());
            }).ok());
    return order;
  };
  const std::vector<int64> order = trace();
  REQUIRE(order.size() == 2 * 8 * 64);
  CHECK(std::is_sorted(order.begin(), order.end(), [](int64 a, int64 b) { return a / 1000 < b / 1000; }));
  CHECK(order == trace());
}

TEST_CASE("a barrier that some threads never reach is reported") {
  check_breach(run({.block = 64},
                   [](auto block, auto&) {
                     if (block.rank() < 40) block.sync();
                   }),
               by_some, 64, 40);
  check_breach(run({.grid = 2, .block = 64},
                   [](auto block, auto&) {
                     block.sync();
                     if (block.block_rank() == 1 && block.rank() == 63) return;
                     block.sync();
                   }),
               by_some, 64, 63);
  check_breach(run({.block = 96},
                   [](auto block, auto&) {
                     if (block.warp() != 1) block.sync();
                   }),
               by_some, 96, 64);
}

TEST_CASE("threads that wait at different barriers are reported with their lines") {
  const int line = __LINE__;
  const status s = run({.block = 64}, [](auto block, auto&) {
    if (block.warp() == 0) {
      block.sync();  // line + 3
    } else {
      block.sync();  // line + 5
    }
  });
  check_breach(s, "must wait at the same barrier", line + 3, line + 5);
}

TEST_CASE("a barrier for the grid that some never reach is reported") {
  giwa::grid_barrier barrier, another;
  const giwa::launch_config c{.grid = 3, .block = 64, .cooperative = true};
  check_breach(run(c,
                   [&](auto block, auto&) {
                     block.sync_grid(barrier);
                     if (block.block_rank() != 1) block.sync_grid(barrier);
                   }),
               "all blocks of the grid must reach a barrier of the grid", 3, 2);
  check_breach(run(c,
                   [&](auto block, auto&) {
                     if (block.rank() < 40) block.sync_grid(barrier);
                   }),
               "all threads of the block must reach a barrier of the grid", 64, 40);
  check_breach(run(c,
                   [&](auto block, auto&) {
                     if (block.warp() == 0) {
                       block.sync_grid(barrier);
                     } else {
                       block.sync();
                     }
                   }),
               "all threads of the block must reach a barrier of the grid", 64, 32);
  check_breach(run(c,
                   [&](auto block, auto&) {
                     if (block.lane() == 3) {
                       block.sync_grid(barrier);
                     } else {
                       block.sync_warp();
                     }
                   }),
               by_some_lanes, 32, 31);
  const int line = __LINE__;
  const status other_line = run(c, [&](auto block, auto&) {
    if (block.block_rank() == 0) {
      block.sync_grid(barrier);  // line + 3
    } else {
      block.sync_grid(barrier);  // line + 5
    }
  });
  check_breach(other_line, "all blocks must wait at the same barrier", line + 3, line + 5);
  const status of_two = run(c, [&](auto block, auto&) { block.sync_grid(block.block_rank() < 2 ? barrier : another); });
  CHECK(says(of_two, "the same grid_barrier"));
  for (const int blocks : {1, 3}) {
    const status s = run({.grid = blocks, .block = 64}, [&](auto block, auto&) { block.sync_grid(barrier); });
    CHECK(s.code == status_code::invalid_argument);
    CHECK(says(s, "needs a launch with .cooperative = true"));
  }
}

TEST_CASE("blocks of a cooperative grid have shared memory of their own") {
  struct shared {
    int64 x[64];
  };
  giwa::grid_barrier barrier;
  int64 wrong = 0;
  REQUIRE(run<shared>({.grid = 5, .block = 64, .cooperative = true}, [&](auto block, shared& s) {
            wrong += s.x[block.rank()] != -1 ? 1 : 0;
            s.x[block.rank()] = block.block_rank();
            block.sync_grid(barrier);
            wrong += s.x[63 - block.rank()] != block.block_rank() ? 1 : 0;
          }).ok());
  CHECK(wrong == 0);
}

TEST_CASE("lanes that meet in different operations are reported") {
  check_breach(run({.block = 32},
                   [](auto block, auto&) {
                     if (block.lane() < 7) {
                       block.shuffle(1, 0);
                     } else {
                       block.ballot(true);
                     }
                   }),
               by_some_lanes, 32, 7);
  check_breach(run({.block = 64},
                   [](auto block, auto&) {
                     if (block.rank() != 50) block.sync_warp();
                   }),
               by_some_lanes, 32, 31);
  check_breach(run({.block = 64},
                   [](auto block, auto&) {
                     if (block.lane() == 3) {
                       block.sync();
                     } else {
                       block.shuffle_xor(2.0, 1);
                     }
                   }),
               by_some_lanes, 32, 31);
  check_breach(run({.block = 32},
                   [](auto block, auto&) {
                     if (block.lane() == 0) {
                       block.shuffle_up(1.0f, 1);
                     } else {
                       block.shuffle_up(1.0, 1);
                     }
                   }),
               "values of the same size", 4, 8);
}

TEST_CASE("an exception of the op reaches the caller, and the next launch is sound") {
  for (int thrower : {0, 33, 255}) {
    const auto throwing = [&](auto block, auto&) {
      if (block.block_rank() == 1 && block.rank() == thrower) throw std::runtime_error("from the op");
      block.sync();
      block.shuffle(1, 2);
    };
    CHECK_THROWS_AS(run({.grid = 3, .block = 256}, throwing), std::runtime_error);
    CHECK_THROWS_AS(run({.grid = 3, .block = 256, .cooperative = true}, throwing), std::runtime_error);
  }
  int total = 0;
  CHECK(run({.block = 256}, [&](auto block, auto&) {
          block.sync();
          total += block.shuffle(1, 2);
        }).ok());
  CHECK(total == 256);
}

TEST_CASE("block memory is aligned, and starts as NaN in every block") {
  struct shared {
    float x[100];
    int i;
  };
  struct alignas(4096) aligned {
    float x[3];
  };
  int bad = 0;
  REQUIRE(run<shared>({.grid = 3, .block = 32}, [&](auto block, shared& s) {
            if (block.rank() == 0) {
              bad += reinterpret_cast<std::uintptr_t>(&s) % 1024 != 0 ? 1 : 0;
              for (float x : s.x) bad += x == x ? 1 : 0;
              bad += s.i != -1 ? 1 : 0;
            }
            block.sync();
            s.x[block.rank()] = 1.f;
            s.i = 0;
          }).ok());
  CHECK(bad == 0);
  REQUIRE(run<aligned>({.block = 32}, [&](auto, aligned& s) {
            bad += reinterpret_cast<std::uintptr_t>(&s) % 4096 != 0 ? 1 : 0;
          }).ok());
  CHECK(bad == 0);
}

TEST_CASE("a body may have large local arrays") {
  int64 sum = 0;
  REQUIRE(run({.block = 64}, [&](auto block, auto&) {
            volatile char local[96 * 1024];
            for (int i = 0; i < 96 * 1024; i += 1024) local[i] = static_cast<char>(block.rank());
            block.sync();
            for (int i = 0; i < 96 * 1024; i += 1024) sum += local[i];
          }).ok());
  CHECK(sum == 96 * 64 * 63 / 2);
}

TEST_CASE("an op may launch an op") {
  int total = 0;
  REQUIRE(run({.block = 32}, [&](auto block, auto&) {
            block.sync();
            if (block.rank() == 5)
              REQUIRE(run({.block = 64}, [&](auto inner, auto&) {
                        inner.sync();
                        total += inner.rank();
                      }).ok());
            block.sync();
          }).ok());
  CHECK(total == 64 * 63 / 2);
}

TEST_CASE("a grid without blocks runs nothing") {
  int calls = 0;
  const auto count = [&](auto, auto&) { ++calls; };
  for (const bool cooperative : {false, true})
    for (const giwa::dimensions& grid : {giwa::dimensions{0}, {4, 0}, {0, 2, 3}, {2, 3, 0}})
      CHECK(run({.grid = grid, .block = 32, .cooperative = cooperative}, count).ok());
  CHECK(calls == 0);
}

TEST_CASE("configurations that the host executor refuses") {
  const auto nothing = [](auto, auto&) {};
  const status cluster = run({.grid = 4, .block = 32, .cluster = 2}, nothing);
  CHECK(cluster.code == status_code::not_supported);
  CHECK(std::string(cluster.argument) == "cluster");
  CHECK(cluster.got == 2);
  CHECK(cluster.expected == 1);
  CHECK(run({.block = 33}, nothing).code == status_code::invalid_argument);
  CHECK(run({.grid = -1, .block = 32}, nothing).code == status_code::invalid_argument);
  CHECK(run({.grid = 4, .block = 32, .cooperative = true}, nothing).ok());
  const status large = run({.grid = 1 << 30, .block = 1024, .cooperative = true}, nothing);
  CHECK(std::string(large.argument) == "grid");
  CHECK(large.relation == bound::at_most);
  CHECK(large.got == 1 << 30);
  CHECK(run({.grid = large.expected, .block = 1024, .cooperative = true}, nothing).ok());
  CHECK_FALSE(run({.grid = large.expected + 1, .block = 1024, .cooperative = true}, nothing).ok());
}
