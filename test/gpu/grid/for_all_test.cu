// SPDX-License-Identifier: MIT
// for_all over indices: each index exactly once, its coordinates in order, for any sizes that fit in 64 bits.
#include <giwa/grid.cuh>

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::dynamic;
using giwa::extents;
using giwa::for_all;
using giwa::int64;
using giwa::max_int64;
using giwa::status;
using giwa::status_code;
using giwa_test::gpu_array;
using giwa_test::touch_counter;

namespace {

struct touch {
  unsigned char* counters;
  GIWA_DEVICE void operator()(int64 i) const { giwa_test::count_byte(counters, i); }
};

// Counts an index where its coordinates lead; one outside of the sizes is counted apart.
template <int Rank>
struct touch_nd {
  unsigned char* counters;
  unsigned* outside;
  giwa::index<Rank> sizes;
  GIWA_DEVICE void operator()(const giwa::index<Rank>& i) const {
    int64 at = 0;
    bool inside = true;
    for (int d = 0; d < Rank; ++d) {
      inside = inside && i[d] >= 0 && i[d] < sizes[d];
      at = at * sizes[d] + i[d];
    }
    if (inside)
      giwa_test::count_byte(counters, at);
    else
      atomicAdd(outside, 1u);
  }
};

// The same for a part of the elements, all of whose indices have to be inside: every 61st is counted.
struct sample_2d {
  unsigned char* counters;
  unsigned* outside;
  int64 rows, columns;
  GIWA_DEVICE void operator()(const giwa::index<2>& i) const {
    const int64 at = i[0] * columns + i[1];
    if (i[0] < 0 || i[0] >= rows || i[1] < 0 || i[1] >= columns)
      atomicAdd(outside, 1u);
    else if (at % 61 == 0)
      giwa_test::count_byte(counters, at / 61);
  }
};

struct write_thread {
  int* out;
  int64 columns;
  GIWA_DEVICE void operator()(const giwa::index<2>& i) const {
    out[i[0] * columns + i[1]] = static_cast<int>(threadIdx.x);
  }
};

struct large_function {
  int* out;
  int table[3000];
  GIWA_DEVICE void operator()(int64 i) const { out[i] = table[i % 3000]; }
};

// Counts the calls for the first and last 64 indices, for 64 on either side of `seam`, and for every 2^20th.
struct sampled_touch {
  int64 n, seam;
  unsigned* seen;            // (4, 64)
  unsigned long long* each;  // calls for multiples of 2^20; calls outside [0, n)
  GIWA_DEVICE void operator()(int64 i) const {
    if (i < 0 || i >= n) atomicAdd(each + 1, 1ull);
    if (i % (1 << 20) == 0) atomicAdd(each, 1ull);
    const int64 begins[] = {0, seam - 64, seam, n - 64};
    for (int window = 0; window < 4; ++window)
      if (begins[window] <= i && i < begins[window] + 64) atomicAdd(seen + window * 64 + (i - begins[window]), 1u);
  }
};

template <int64... Sizes>
void check(const extents<Sizes...>& e) {
  constexpr int rank = sizeof...(Sizes);
  const giwa::stream s = giwa_test::new_stream();
  giwa::index<rank> sizes;
  for (int d = 0; d < rank; ++d) sizes[d] = e[d];
  CAPTURE(rank, e.size(), e[0], e[rank - 1]);
  const touch_counter counters(e.size());
  const gpu_array<unsigned> outside(1, 0);
  REQUIRE(for_all(s, e, touch_nd<rank>{counters.data(), outside.data(), sizes}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  REQUIRE(outside.to_host()[0] == 0);
  REQUIRE(counters.wrong() == 0);
}

template <class N>
void check_count(N n) {
  const giwa::stream s = giwa_test::new_stream();
  const touch_counter counters(static_cast<int64>(n));
  CAPTURE(n);
  REQUIRE(for_all(s, n, touch{counters.data()}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  REQUIRE(counters.wrong() == 0);
}

}  // namespace

TEST_CASE("a number: each index once") {
  for (const int n : {0, 1, 2, 31, 32, 255, 256, 257, 997, 1023, 1024, 1025, 2047, 2048, 2049, 65521, 65536, 1000003})
    check_count(n);
}

TEST_CASE("a number beyond what one grid can hold takes several launches: each index once") {
  if (giwa_test::small_mode()) return;
  constexpr int64 blocks_of_a_grid = 2147483647, indices_of_a_block = 1024;
  const int64 seam = blocks_of_a_grid * indices_of_a_block, n = seam + 5000;
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<unsigned> seen(4 * 64, 0);
  const gpu_array<unsigned long long> each(2, 0);
  REQUIRE(for_all(s, n, sampled_touch{n, seam, seen.data(), each.data()}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(seen.to_host() == std::vector<unsigned>(4 * 64, 1u));
  CHECK(each.to_host() == std::vector<unsigned long long>{static_cast<unsigned long long>((n - 1) / (1 << 20) + 1), 0});
}

TEST_CASE("a number of any integer type, or what is wrong with it") {
  check_count(static_cast<signed char>(127));
  check_count(static_cast<unsigned char>(255));
  check_count(static_cast<unsigned short>(65535));
  check_count(70000u);
  check_count(std::size_t{70000});
  const giwa::stream s = giwa_test::new_stream();
  const touch_counter counters(1000);
  const touch f{counters.data()};
  for (const status& state :
       {for_all(s, -1, f), for_all(s, -max_int64 - 1, f), for_all(s, static_cast<signed char>(-128), f),
        for_all(s, ~giwa::uint64{0}, f), for_all(s, giwa::uint64{1} << 63, f)}) {
    CHECK(state.code == status_code::invalid_argument);
    CHECK(state.argument == std::string("n"));
  }
  CHECK(giwa_test::no_error_left());
  CHECK(counters.wrong(0) == 0);
}

TEST_CASE("extents: each index once, the coordinates in order") {
  check(extents{1});
  check(extents{1025});
  check(extents{7, 13});
  check(extents{1, 4099});
  check(extents{4099, 1});
  check(extents{70000, 3});
  check(extents{3, 70000});
  check(extents{31, 33, 37});
  check(extents{1, 1, 1});
  check(extents{70001, 2, 3});
  check(extents{2, 70001, 3});
  check(extents{2, 3, 70001});
  check(extents{5, 7, 11, 13});
  check(extents{1, 65537, 1, 2});
  check(extents{2, 3, 5, 7, 11, 13});
  check(extents<dynamic, 128>{777});
  check(extents<dynamic, 1>{777});
  check(extents<37, dynamic, 41>{43});
  check(extents<64, 128>{});
  check(extents<3, 5, 7>{});
}

TEST_CASE("empty extents call nothing, extents that cannot be say so") {
  const giwa::stream s = giwa_test::new_stream();
  const touch_counter counters(16);
  const gpu_array<unsigned> outside(1, 0);
  const touch_nd<2> two{counters.data(), outside.data(), {4, 4}};
  const touch_nd<3> three{counters.data(), outside.data(), {2, 2, 4}};
  CHECK(for_all(s, extents{0, 5}, two).ok());
  CHECK(for_all(s, extents{5, 0}, two).ok());
  CHECK(for_all(s, extents{max_int64, 0}, two).ok());
  CHECK(for_all(s, extents{0, max_int64, max_int64}, three).ok());
  CHECK(for_all(s, extents<dynamic, 0>{5}, two).ok());
  for (const status& state :
       {for_all(s, extents{-1, 5}, two), for_all(s, extents{0, -5}, two),
        for_all(s, extents{int64{1} << 32, int64{1} << 31}, two), for_all(s, extents{2, -max_int64, 2}, three),
        for_all(s, extents{max_int64, max_int64, max_int64}, three)}) {
    CHECK(state.code == status_code::invalid_argument);
    CHECK(state.argument == std::string("extents"));
  }
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(giwa_test::no_error_left());
  CHECK(counters.wrong(0) == 0);
  CHECK(outside.to_host()[0] == 0);
}

TEST_CASE("neighbours in the last dimension are neighbouring threads") {
  const giwa::stream s = giwa_test::new_stream();
  const int64 rows = 300, columns = 1000;
  const gpu_array<int> out(static_cast<std::size_t>(rows * columns));
  REQUIRE(for_all(s, extents{rows, columns}, write_thread{out.data(), columns}).ok());
  const std::vector<int> thread = out.to_host();
  std::size_t broken = 0;
  for (std::size_t i = 0; i + 1 < thread.size(); ++i) broken += thread[i + 1] != thread[i] + 1 ? 1 : 0;
  CHECK(broken <= thread.size() / 32);  // at most where a warp ends
}

TEST_CASE("a function of 12 kilobytes travels with the call") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<int> out(10000);
  large_function f{out.data(), {}};
  for (int i = 0; i < 3000; ++i) f.table[i] = 7 * i;
  REQUIRE(for_all(s, out.size(), f).ok());
  const std::vector<int> got = out.to_host();
  bool right = true;
  for (std::size_t i = 0; i < got.size(); ++i) right = right && got[i] == 7 * static_cast<int>(i % 3000);
  CHECK(right);
}

TEST_CASE("more than 2^31 elements") {
  if (giwa_test::small_mode()) return;
  SECTION("a number") { check_count((int64{1} << 31) + 1); }
  SECTION("a little more than 2^32") { check_count((int64{1} << 32) + 1025); }
  SECTION("one dimension") { check(extents{(int64{1} << 31) + 1}); }
  SECTION("long rows") { check(extents{3, 1431655769}); }
  SECTION("many rows") { check(extents{1431655769, 3}); }
  SECTION("70000 rows of 70000") {
    const giwa::stream s = giwa_test::new_stream();
    const int64 n = 70000;
    const touch_counter counters(giwa::ceil_div(n * n, 61));
    const gpu_array<unsigned> outside(1, 0);
    REQUIRE(for_all(s, extents{n, n}, sample_2d{counters.data(), outside.data(), n, n}).ok());
    REQUIRE(giwa::synchronize(s).ok());
    CHECK(outside.to_host()[0] == 0);
    CHECK(counters.wrong() == 0);
  }
}
