// SPDX-License-Identifier: MIT
// Pure headers on the device: random numbers, products, divisions, sines, views and extents give what they give on the host.
#include <giwa/grid.cuh>

#include <cstring>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/random.hpp"

using giwa::int64;
using giwa::random_words;
using giwa::uint32;
using giwa::uint64;
using giwa_test::gpu_array;

namespace {

struct random_numbers {
  random_words words;
  float narrow, normal;
  double wide;
};

GIWA_HOST_DEVICE random_numbers numbers_of(const giwa::philox& random, uint64 i) {
  return {random(i), random.uniform<float>(i), random.normal<float>(i), random.uniform<double>(i)};
}

// Random numbers for n elements, the ones from first on.
__global__ void __launch_bounds__(1024) draw(random_numbers* out, giwa::philox random, uint64 first, int64 n) {
  for (const int64 i : giwa::grid_stride(n)) {
    out[i] = numbers_of(random, first + static_cast<uint64>(i));
  }
}
struct draw_each {
  random_numbers* out;
  giwa::philox random;
  uint64 first;
  GIWA_DEVICE void operator()(int64 i) const { out[i] = numbers_of(random, first + static_cast<uint64>(i)); }
};

struct pair_of_numbers {
  int64 n, d;
};
struct arithmetic {
  int64 quotient;
  uint64 high;
  uint32 high32;
  bool overflows;
};
template <class Pair>
GIWA_HOST_DEVICE arithmetic work_out(const Pair& p) {
  return {p.n / giwa::fast_divisor(p.d),
          giwa::multiply_high(static_cast<uint64>(p.n) * 2 + 1, ~static_cast<uint64>(p.d)),
          giwa::multiply_high(static_cast<uint32>(p.n), static_cast<uint32>(p.d) * 2654435761u),
          giwa::product_overflows(p.n, p.d)};
}
struct work_out_each {
  const pair_of_numbers* in;
  arithmetic* out;
  GIWA_DEVICE void operator()(int64 i) const { out[i] = work_out(in[i]); }
};

// Writes each element's rank through a view with any strides, by way of delinearize.
struct write_ranks {
  giwa::tensor_view<int64, 3> view;
  giwa::extents<giwa::dynamic, 5, giwa::dynamic> sizes;
  GIWA_DEVICE void operator()(int64 rank) const {
    const giwa::index<3> i = giwa::delinearize(sizes, rank);
    view[i] = giwa::linearize(sizes, i) + (sizes.contains(i) ? 0 : 1000000);
    const auto [z, y, x] = i;
    view(z, y, x) += 1;
  }
};

struct sine_and_cosine {
  float sine, cosine;
};
// Number i of the floats whose bits are 0, step, 2 step, ..., the even ones negative.
GIWA_HOST_DEVICE float argument(int64 i, uint32 step) {
  return __builtin_bit_cast(float, static_cast<uint32>(i) * step | (i % 2 == 0 ? 0x80000000u : 0u));
}
struct work_out_sines {
  sine_and_cosine* out;
  uint32 step;
  GIWA_DEVICE void operator()(int64 i) const {
    const float x = argument(i, step);
    out[i] = {giwa::sin(x), giwa::cos(x)};
  }
};

bool same_bits(const std::vector<random_numbers>& a, const random_numbers* b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(a[i].words == b[i].words) || std::memcmp(&a[i].narrow, &b[i].narrow, 4) != 0 ||
        std::memcmp(&a[i].wide, &b[i].wide, 8) != 0)
      return false;
  return true;
}

}  // namespace

TEST_CASE("random numbers have the same bits on the host and on the device, whatever the launch") {
  const giwa::stream s = giwa_test::new_stream();
  const std::size_t n = 200003;
  const gpu_array<random_numbers> out(n);
  for (const uint64 first : {uint64{0}, (uint64{1} << 32) - 1000, ~uint64{0} - 100}) {
    const giwa::philox random{0x123456789abcdef0, first ^ 0xffff0000ffff};
    std::vector<random_numbers> expected(n);
    for (std::size_t i = 0; i < n; ++i) expected[i] = numbers_of(random, first + i);
    CAPTURE(first);

    for (const giwa::launch_config& c :
         {giwa::launch_config{.grid = 1, .block = 96}, {.grid = {7, 3, 2}, .block = {5, 3, 7}}}) {
      REQUIRE(giwa::launch(s, c, draw, out.data(), random, first, n).ok());
      REQUIRE(giwa::synchronize(s).ok());
      CHECK(same_bits(expected, out.to_host().data()));
    }
    REQUIRE(giwa::for_all(s, n, draw_each{out.data(), random, first}).ok());
    REQUIRE(giwa::synchronize(s).ok());
    CHECK(same_bits(expected, out.to_host().data()));
  }
}

TEST_CASE("products and divisions are those of the host") {
  std::vector<pair_of_numbers> in;
  for (const int64 n : giwa_test::edges())
    for (const int64 d : giwa_test::edges())
      if (d > 0) in.push_back({n, d});
  giwa_test::random_sequence random(5);
  for (int i = 0; i < 100000; ++i) in.push_back({random.any_magnitude(), random.any_magnitude() | 1});

  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<pair_of_numbers> in_gpu(in);
  const gpu_array<arithmetic> out(in.size());
  REQUIRE(giwa::for_all(s, in.size(), work_out_each{in_gpu.data(), out.data()}).ok());
  const std::vector<arithmetic> got = out.to_host();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const arithmetic expected = work_out(in[i]);
    if (got[i].quotient == in[i].n / in[i].d && got[i].high == expected.high && got[i].high32 == expected.high32 &&
        got[i].overflows == expected.overflows)
      continue;
    CAPTURE(in[i].n, in[i].d);
    REQUIRE(got[i].quotient == in[i].n / in[i].d);
    REQUIRE(got[i].high == expected.high);
    REQUIRE(got[i].high32 == expected.high32);
    REQUIRE(got[i].overflows == expected.overflows);
  }
}

TEST_CASE("sines and cosines have the same bits on the host and on the device") {
  const giwa::stream s = giwa_test::new_stream();
  const uint32 step = 1999, last = 0x47c35000;  // 1e5f
  const gpu_array<sine_and_cosine> out(last / step + 1);
  REQUIRE(giwa::for_all(s, out.size(), work_out_sines{out.data(), step}).ok());
  const std::vector<sine_and_cosine> got = out.to_host();
  std::size_t differ = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float x = argument(static_cast<int64>(i), step);
    const sine_and_cosine expected{giwa::sin(x), giwa::cos(x)};
    differ += std::memcmp(&got[i], &expected, sizeof expected) != 0;
  }
  CHECK(differ == 0);
}

TEST_CASE("views and extents work on the device") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<int64> memory(4 * 5 * 6 * 3);
  const giwa::extents<giwa::dynamic, 5, giwa::dynamic> sizes{4, 6};
  const giwa::tensor_view<int64, 3> view(memory.data() + 3 * 119, {4, 5, 6}, {-3, -3 * 4, -3 * 20});  // backwards
  REQUIRE(giwa::for_all(s, sizes.size(), write_ranks{view, sizes}).ok());
  const std::vector<int64> got = memory.to_host();
  for (int64 z = 0; z < 4; ++z)
    for (int64 y = 0; y < 5; ++y)
      for (int64 x = 0; x < 6; ++x)
        CHECK(got[static_cast<std::size_t>(3 * (119 - z - 4 * y - 20 * x))] == (z * 5 + y) * 6 + x + 1);
  for (std::size_t i = 0; i < got.size(); ++i)
    if (i % 3 != 0) CHECK(got[i] == -1);
}
