// SPDX-License-Identifier: MIT
// for_all on the CPU: every element exactly once, sizes that are refused, exceptions, and its ranges beyond 32 bits.
#include "support/catch2.hpp"

#include <giwa/host.hpp>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(_OPENMP)
#include <sys/wait.h>
#include <unistd.h>
#endif

using giwa::extents;
using giwa::for_all;
using giwa::host;

using giwa::int64;
using giwa::status;
using giwa::status_code;

namespace {

bool all_ones(const std::vector<int>& count) {
  return std::all_of(count.begin(), count.end(), [](int c) { return c == 1; });
}

std::vector<int> zeros(int64 n) { return std::vector<int>(static_cast<std::size_t>(n)); }

}  // namespace

TEST_CASE("for_all over a number calls each element once") {
  const int64 n = GENERATE(0, 1, 2, 31, 997, 65536, 131071, 131072, 1000003);
  std::vector<int> count = zeros(n + 1);
  int* c = count.data();
  REQUIRE(for_all(host, n, [=](auto i) {
            static_assert(std::is_same_v<decltype(i), int64>);
            ++c[i];
          }).ok());
  CHECK(count.back() == 0);
  count.pop_back();
  CHECK(all_ones(count));
}

TEST_CASE("sizes in braces are extents") {
  const int height = 3;
  const int64 width = 5, sizes[3] = {2, 3, 4};
  std::vector<int> count = zeros(height * width);
  int* c = count.data();
  REQUIRE(for_all(host, {height, width}, [=](giwa::index<2> i) { ++c[i[0] * width + i[1]]; }).ok());
  REQUIRE(for_all(host, {height}, [=](int64 i) { --c[i]; }).ok());
  CHECK((std::count(c, c + height, 0) == height && std::count(c, c + height * width, 1) == height * (width - 1)));
  int calls = 0;
  REQUIRE(for_all(host, sizes, [&](giwa::index<3>) { ++calls; }).ok());
  CHECK(calls == 24);
  CHECK(for_all(host, {4, 0}, [&](giwa::index<2>) { ++calls; }).ok());
  CHECK(for_all(host, {4, -1}, [](giwa::index<2>) {}).got == -1);
  CHECK(calls == 24);
}

TEST_CASE("for_all over extents calls each position once") {
  SECTION("one dimension") {
    const int64 n = GENERATE(0, 1, 200003);
    std::vector<int> count = zeros(n);
    int* c = count.data();
    REQUIRE(for_all(host, extents{n}, [=](giwa::index<1> i) { ++c[i[0]]; }).ok());
    CHECK(all_ones(count));
  }
  SECTION("two dimensions") {
    const auto [h, w] =
        GENERATE(std::pair<int64, int64>{0, 5}, std::pair<int64, int64>{5, 0}, std::pair<int64, int64>{1, 1},
                 std::pair<int64, int64>{7, 13}, std::pair<int64, int64>{70000, 3}, std::pair<int64, int64>{1, 300007},
                 std::pair<int64, int64>{300007, 1}, std::pair<int64, int64>{997, 499});
    const int64 height = h, width = w;
    std::vector<int> count = zeros(height * width);
    int* c = count.data();
    REQUIRE(for_all(host, extents{height, width}, [=](giwa::index<2> i) {
              if (0 <= i[0] && i[0] < height && 0 <= i[1] && i[1] < width) ++c[i[0] * width + i[1]];
            }).ok());
    CHECK(all_ones(count));
  }
  SECTION("three dimensions, some of them static") {
    const int64 n = GENERATE(0, 1, 3, 37, 901);
    std::vector<int> count = zeros(n * 17 * 23);
    int* c = count.data();
    REQUIRE(for_all(host, extents<giwa::dynamic, 17, 23>{n}, [=](giwa::index<3> i) {
              ++c[(i[0] * 17 + i[1]) * 23 + i[2]];
            }).ok());
    CHECK(all_ones(count));
  }
}

TEST_CASE("ranges start and end anywhere, and reach beyond 32 bits") {
  std::vector<giwa::index<3>> seen;
  const auto walk = [&](const auto& e, int64 begin, int64 end) {
    seen.clear();
    giwa::detail::for_each_index(e, begin, end, [&](giwa::index<3> i) { seen.push_back(i); });
    bool right = seen.size() == static_cast<std::size_t>(std::max(end - begin, int64{0}));
    for (std::size_t k = 0; right && k < seen.size(); ++k)
      right = linearize(e, seen[k]) == begin + static_cast<int64>(k);
    return right;
  };
  for (int64 begin = 0; begin <= 30; ++begin)
    for (int64 end = begin; end <= 30; ++end) REQUIRE(walk(extents{2, 3, 5}, begin, end));
  const extents large{int64{1} << 20, 3, int64{1} << 33};
  CHECK(walk(large, (int64{1} << 33) - 3, (int64{1} << 33) + 3));
  CHECK(walk(large, 3 * (int64{1} << 33) - 3, 3 * (int64{1} << 33) + 3));
  CHECK(walk(large, large.size() - 5, large.size()));
}

TEST_CASE("host_parallel covers the range once, in pieces of at least the grain") {
  const int64 n = GENERATE(int64{0}, 1, 63, 64, 999, 100003, (int64{1} << 32) + 3, giwa::max_int64);
  const int64 grain = GENERATE(int64{1}, 64, 1000, int64{1} << 31);
  std::mutex mutex;
  std::vector<std::pair<int64, int64>> ranges;
  giwa::detail::host_parallel(n, grain, [&](int64 begin, int64 end) {
    const std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  int64 at = 0;
  for (const auto& [begin, end] : ranges) {
    CHECK(begin == at);
    CHECK(begin < end);
    if (end != n) CHECK(end - begin >= grain);
    at = end;
  }
  CHECK(at == n);
}

TEST_CASE("host_parallel makes one state for each thread, and destroys it") {
  std::atomic<int> made{0}, alive{0}, wrong{0}, pieces{0};
  struct state {
    std::atomic<int>& alive;
    std::thread::id owner = std::this_thread::get_id();
    explicit state(std::atomic<int>& n) : alive(n) { ++alive; }
    ~state() { --alive; }
    state(const state&) = delete;
  };
  giwa::detail::host_parallel(
      6400, 64, [&] { return ++made, state(alive); },
      [&](state& s, int64, int64) { ++pieces, wrong += s.owner == std::this_thread::get_id() ? 0 : 1; });
  CHECK(made <= static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u)));
  CHECK(pieces >= made);
  CHECK(wrong == 0);
  CHECK(alive == 0);
}

#if defined(_OPENMP)
TEST_CASE("host_parallel has as many threads as OpenMP may have, and one in a parallel region") {
  const int before = omp_get_max_threads();
  const auto count_threads = [] {
    std::atomic<int> made{0};
    std::atomic<int64> covered{0};
    giwa::detail::host_parallel(
        6400, 64, [&] { return ++made; }, [&](int, int64 begin, int64 end) { covered += end - begin; });
    CHECK(covered == 6400);
    return made.load();
  };
  omp_set_num_threads(1);
  CHECK(count_threads() == 1);
  omp_set_num_threads(3);
  CHECK(count_threads() <= 3);
  int nested = 0;
#pragma omp parallel num_threads(2)
#pragma omp single
  nested = count_threads();
  CHECK(nested == 1);
  omp_set_num_threads(before);
}

TEST_CASE("a child of fork() computes, although OpenMP's threads are the parent's") {
  const auto covers = [] {
    std::atomic<int64> covered{0};
    giwa::detail::host_parallel(6400, 64, [&](int64 begin, int64 end) { covered += end - begin; });
    return covered == 6400;
  };
  const int before = omp_get_max_threads();
  omp_set_num_threads(2);
  CHECK(covers());
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(20);  // ends a child that waits
    _exit(covers() ? 0 : 1);
  }
  int state = -1;
  CHECK(waitpid(child, &state, 0) == child);
  CHECK(state == 0);
  CHECK(covers());
  omp_set_num_threads(before);
}
#endif

TEST_CASE("sizes that for_all refuses") {
  const auto nothing = [](auto) {};
  const status negative = for_all(host, -3, nothing);
  CHECK(negative.code == status_code::invalid_argument);
  CHECK(std::string(negative.argument) == "n");
  CHECK(negative.got == -3);
  CHECK(for_all(host, ~giwa::uint64{0}, nothing).code == status_code::invalid_argument);
  CHECK(for_all(host, extents{4, -1}, nothing).got == -1);
  CHECK(for_all(host, extents{int64{1} << 40, int64{1} << 40}, nothing).code == status_code::invalid_argument);
  CHECK(for_all(host, extents{int64{1} << 40, int64{1} << 40, 0}, nothing).ok());
  CHECK(for_all(host, static_cast<unsigned char>(200), nothing).ok());
}

TEST_CASE("an exception of the body reaches the caller") {
  const int64 n = GENERATE(10, 1000000);
  const auto throwing = [=](int64 i) {
    if (i == n - 1) throw std::runtime_error("from the body");
  };
  CHECK_THROWS_AS(for_all(host, n, throwing), std::runtime_error);
  const auto always = [](giwa::index<2>) { throw std::runtime_error("from the body"); };
  CHECK_THROWS_AS(for_all(host, extents{1000, n}, always), std::runtime_error);
}
