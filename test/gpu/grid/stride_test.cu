// SPDX-License-Identifier: MIT
// Stride loops on the device: whatever the size, the grid and the block, each element exactly once at its scope.
#include <giwa/grid.cuh>

#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::dimensions;
using giwa::int64;
using giwa::launch_config;
using giwa::scope;
using giwa_test::gpu_array;
using giwa_test::touch_counter;

namespace {

// Each group of the Level has its own n counters, behind one another.
template <scope Level>
struct groups;
template <>
struct groups<scope::grid> {
  static int64 count(const launch_config&) { return 1; }
  __device__ static int64 rank() { return 0; }
};
template <>
struct groups<scope::cluster> {
  static int64 count(const launch_config& c) { return c.grid.count() / c.cluster.count(); }
  __device__ static int64 rank() { return giwa::rank<scope::cluster, scope::grid>(); }
};
template <>
struct groups<scope::block> {
  static int64 count(const launch_config& c) { return c.grid.count(); }
  __device__ static int64 rank() {
    return blockIdx.x + int64{gridDim.x} * (blockIdx.y + int64{gridDim.y} * blockIdx.z);
  }
};
template <>
struct groups<scope::warp> {
  static int64 count(const launch_config& c) { return c.grid.count() * c.block.count() / 32; }
  __device__ static int64 rank() {
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return groups<scope::block>::rank() * (threads / 32) + thread / 32;
  }
};

template <scope Level, class N>
__global__ void __launch_bounds__(1024) touch(unsigned char* counters, N n) {
  const int64 base = groups<Level>::rank() * static_cast<int64>(n);
  for (const int64 i : giwa::stride_in<Level>(n)) giwa_test::count_byte(counters, base + i);
}

// The same through the functions with names of their own.
__global__ void __launch_bounds__(1024)
    touch_by_name(unsigned char* by_grid, unsigned char* by_block, unsigned char* by_warp, int64 n) {
  for (const auto i : giwa::grid_stride(n)) giwa_test::count_byte(by_grid, i);
  for (const auto i : giwa::block_stride(n)) giwa_test::count_byte(by_block, groups<scope::block>::rank() * n + i);
  for (const auto i : giwa::warp_stride(n)) giwa_test::count_byte(by_warp, groups<scope::warp>::rank() * n + i);
}

// An index is counted where its coordinates, taken in row-major order, lead; one that is outside is counted apart.
template <scope Level, class Extents>
__global__ void __launch_bounds__(1024) touch_nd(unsigned char* counters, unsigned* outside, Extents e, int64 size) {
  const int64 base = groups<Level>::rank() * size;
  for (const auto& i : giwa::stride_in<Level>(e)) {
    int64 at = 0;
    bool inside = true;
    for (int d = 0; d < Extents::rank; ++d) {
      inside = inside && i[d] >= 0 && i[d] < e[d];
      at = at * e[d] + i[d];
    }
    if (inside)
      giwa_test::count_byte(counters, base + at);
    else
      atomicAdd(outside, 1u);
  }
}

template <scope Level, class N>
void check(const launch_config& c, N n) {
  const giwa::stream s = giwa_test::new_stream();
  const touch_counter counters(groups<Level>::count(c) * static_cast<int64>(n));
  const auto kernel = touch<Level, N>;
  REQUIRE(giwa::launch(s, c, kernel, counters.data(), n).ok());
  CAPTURE(static_cast<int>(Level), n, c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z);
  REQUIRE(counters.wrong() == 0);
}

template <scope Level, int64... Sizes>
void check_nd(const launch_config& c, const giwa::extents<Sizes...>& e) {
  const giwa::stream s = giwa_test::new_stream();
  const touch_counter counters(groups<Level>::count(c) * e.size());
  const gpu_array<unsigned> outside(1, 0);
  const auto kernel = touch_nd<Level, giwa::extents<Sizes...>>;
  REQUIRE(giwa::launch(s, c, kernel, counters.data(), outside.data(), e, e.size()).ok());
  CAPTURE(static_cast<int>(Level), e.size(), c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z);
  REQUIRE(counters.wrong() == 0);
  REQUIRE(outside.to_host()[0] == 0);
}

const dimensions grids[] = {1, 7, {3, 2}, {2, 3, 2}};
const dimensions blocks[] = {1, 31, 33, {8, 4}, {5, 3, 2}, {2, 16, 3}, 1024};

}  // namespace

TEST_CASE("one dimension, every size, grid and block") {
  for (const int64 n : {0, 1, 2, 31, 32, 33, 97, 1009})
    for (const dimensions& grid : grids)
      for (const dimensions& block : blocks) {
        const launch_config c{.grid = grid, .block = block};
        check<scope::grid>(c, n);
        check<scope::block>(c, n);
        check<scope::cluster>(c, n);  // without clusters a cluster is a block
        if (block.count() % 32 == 0) check<scope::warp>(c, n);
      }
  check<scope::grid>({.grid = 13, .block = 96}, 1000003);
  check<scope::grid>({.grid = 4000, .block = 256}, 5);  // most threads have nothing to do
}

TEST_CASE("the size may be of any integer type") {
  const launch_config c{.grid = 3, .block = 64};
  check<scope::grid>(c, short{1000});
  check<scope::grid>(c, 1000);
  check<scope::grid>(c, 1000u);
  check<scope::grid>(c, std::size_t{1000});
  check<scope::block>(c, static_cast<unsigned char>(200));
}

TEST_CASE("a size that is negative is no work") {
  const giwa::stream s = giwa_test::new_stream();
  const touch_counter counters(1000);
  const auto kernel = touch<scope::grid, int>;
  REQUIRE(giwa::launch(s, {.grid = 3, .block = 64}, kernel, counters.data(), -1000).ok());
  CHECK(counters.wrong(0) == 0);
}

TEST_CASE("grid_stride, block_stride and warp_stride") {
  for (const int64 n : {0, 1, 1009})
    for (const dimensions& block : {dimensions{32}, {8, 4, 3}}) {
      const launch_config c{.grid = {3, 2}, .block = block};
      const giwa::stream s = giwa_test::new_stream();
      const touch_counter grid(n), each_block(n * groups<scope::block>::count(c)),
          each_warp(n * groups<scope::warp>::count(c));
      REQUIRE(giwa::launch(s, c, touch_by_name, grid.data(), each_block.data(), each_warp.data(), n).ok());
      CAPTURE(n, block.x);
      REQUIRE(grid.wrong() == 0);
      REQUIRE(each_block.wrong() == 0);
      REQUIRE(each_warp.wrong() == 0);
    }
}

TEST_CASE("one to three dimensions, in launches of one to three") {
  for (const dimensions& grid : {dimensions{1}, {3, 2}, {2, 1, 3}})
    for (const dimensions& block : {dimensions{1}, {33}, {8, 4}, {4, 3, 5}}) {
      const launch_config c{.grid = grid, .block = block};
      check_nd<scope::grid>(c, giwa::extents{0});
      check_nd<scope::grid>(c, giwa::extents{1009});
      check_nd<scope::grid>(c, giwa::extents{0, 5});
      check_nd<scope::grid>(c, giwa::extents{5, 0});
      check_nd<scope::grid>(c, giwa::extents{1, 1});
      check_nd<scope::grid>(c, giwa::extents{7, 131});
      check_nd<scope::grid>(c, giwa::extents{131, 7});
      check_nd<scope::block>(c, giwa::extents{13, 17});
      check_nd<scope::block>(c, giwa::extents<giwa::dynamic, 17>{13});
      check_nd<scope::grid>(c, giwa::extents{5, 0, 5});
      check_nd<scope::grid>(c, giwa::extents{3, 11, 37});
      check_nd<scope::grid>(c, giwa::extents{37, 11, 3});
      check_nd<scope::block>(c, giwa::extents{3, 11, 37});
    }
}

TEST_CASE("the threads of a cluster share its elements out") {
  if (giwa_test::device_attribute(cudaDevAttrClusterLaunch) == 0) {
    WARN("skipped: clusters need a GPU of compute capability 9.0");
    return;
  }
  for (const int64 n : {0, 1, 97, 10007}) {
    check<scope::cluster>({.grid = 12, .block = 64, .cluster = 4}, n);
    check<scope::cluster>({.grid = {4, 6}, .block = {5, 3}, .cluster = {2, 2}}, n);
    check<scope::grid>({.grid = {4, 6}, .block = {5, 3}, .cluster = {2, 2}}, n);
  }
  check_nd<scope::cluster>({.grid = {4, 6}, .block = {5, 3}, .cluster = {2, 2}}, giwa::extents{7, 131});
}

TEST_CASE("more than 2^32 elements") {
  if (giwa_test::small_mode()) return;
  check<scope::grid>({.grid = 2640, .block = 256}, (int64{1} << 32) + 5);
  check_nd<scope::grid>({.grid = {37, 71}, .block = {32, 8}}, giwa::extents{70001, 61357});  // a little more as well
}
