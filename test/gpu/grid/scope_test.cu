// SPDX-License-Identifier: MIT
// Who each thread of a launch is, at every pair of scopes, against arithmetic on the host.
#include <giwa/grid.cuh>

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::dimensions;
using giwa::int64;
using giwa::launch_config;
using giwa::scope;
using giwa_test::gpu_array;

namespace {

// What each thread writes: positions and sizes for every pair of scopes that has them, then rank and count for every pair.
constexpr int fields_of_a_position = 12, positions = 6, ranks = 10;
constexpr int64 fields = positions * fields_of_a_position + ranks * 2;

struct writer {
  int64* next;
  template <int N>
  __device__ void write(const giwa::index<N>& i) {
    for (int d = 0; d < N; ++d) *next++ = i[d];
  }
  template <scope Unit, scope Level>
  __device__ void write_positions() {
    write(giwa::position<3, Unit, Level>());
    write(giwa::sizes<3, Unit, Level>());
    write(giwa::position<2, Unit, Level>());
    write(giwa::sizes<2, Unit, Level>());
    write(giwa::position<1, Unit, Level>());
    write(giwa::sizes<1, Unit, Level>());
  }
  template <scope Unit, scope Level>
  __device__ void write_rank() {
    *next++ = giwa::rank<Unit, Level>();
    *next++ = giwa::count<Unit, Level>();
  }
};

__global__ void __launch_bounds__(1024) record(int64* out) {
  // The thread's place in the output, from CUDA's own variables.
  const int64 block = blockIdx.x + int64{gridDim.x} * (blockIdx.y + int64{gridDim.y} * blockIdx.z);
  const int64 thread = threadIdx.x + int64{blockDim.x} * (threadIdx.y + int64{blockDim.y} * threadIdx.z);
  writer w{out + (block * (int64{blockDim.x} * blockDim.y * blockDim.z) + thread) * fields};
  w.write_positions<scope::thread, scope::block>();
  w.write_positions<scope::thread, scope::cluster>();
  w.write_positions<scope::thread, scope::grid>();
  w.write_positions<scope::block, scope::cluster>();
  w.write_positions<scope::block, scope::grid>();
  w.write_positions<scope::cluster, scope::grid>();
  w.write_rank<scope::thread, scope::warp>();
  w.write_rank<scope::thread, scope::block>();
  w.write_rank<scope::thread, scope::cluster>();
  w.write_rank<scope::thread, scope::grid>();
  w.write_rank<scope::warp, scope::block>();
  w.write_rank<scope::warp, scope::cluster>();
  w.write_rank<scope::warp, scope::grid>();
  w.write_rank<scope::block, scope::cluster>();
  w.write_rank<scope::block, scope::grid>();
  w.write_rank<scope::cluster, scope::grid>();
}

// What record should write.
class model {
 public:
  model(const dimensions& grid, const dimensions& block, const dimensions& cluster)
      : grid_(grid),
        block_(block),
        cluster_(cluster),
        clusters_{grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z} {}

  std::vector<int64> all() {
    for (int64 b = 0; b < grid_.count(); ++b)
      for (int64 t = 0; t < block_.count(); ++t) one(from_rank(b, grid_), from_rank(t, block_));
    return std::move(out_);
  }

 private:
  static dimensions from_rank(int64 r, const dimensions& n) { return {r % n.x, r / n.x % n.y, r / n.x / n.y}; }
  static int64 to_rank(const dimensions& i, const dimensions& n) { return i.x + i.y * n.x + i.z * n.x * n.y; }
  static dimensions times(const dimensions& a, const dimensions& b) { return {a.x * b.x, a.y * b.y, a.z * b.z}; }
  static dimensions plus(const dimensions& a, const dimensions& b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }

  void add(std::initializer_list<int64> values) { out_.insert(out_.end(), values); }
  void position(const dimensions& i, const dimensions& n) {
    add({i.z, i.y, i.x, n.z, n.y, n.x});
    add({i.z * n.y + i.y, i.x, n.z * n.y, n.x});
    add({to_rank(i, n), n.count()});
  }

  void one(const dimensions& block, const dimensions& thread) {
    const dimensions in_cluster{block.x % cluster_.x, block.y % cluster_.y, block.z % cluster_.z};
    const dimensions cluster{block.x / cluster_.x, block.y / cluster_.y, block.z / cluster_.z};
    position(thread, block_);
    position(plus(times(in_cluster, block_), thread), times(cluster_, block_));
    position(plus(times(block, block_), thread), times(grid_, block_));
    position(in_cluster, cluster_);
    position(block, grid_);
    position(cluster, clusters_);

    const int64 threads = block_.count(), warps = (threads + 31) / 32, rank = to_rank(thread, block_);
    const int64 block_in_cluster = to_rank(in_cluster, cluster_), block_in_grid = to_rank(block, grid_);
    add({rank % 32, 32});
    add({rank, threads});
    add({block_in_cluster * threads + rank, cluster_.count() * threads});
    add({block_in_grid * threads + rank, grid_.count() * threads});
    add({rank / 32, warps});
    add({block_in_cluster * warps + rank / 32, cluster_.count() * warps});
    add({block_in_grid * warps + rank / 32, grid_.count() * warps});
    add({block_in_cluster, cluster_.count()});
    add({block_in_grid, grid_.count()});
    add({to_rank(cluster, clusters_), clusters_.count()});
  }

  dimensions grid_, block_, cluster_, clusters_;
  std::vector<int64> out_;
};

void check(const launch_config& c) {
  CAPTURE(c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z, c.cluster.x, c.cluster.y, c.cluster.z);
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<int64> out(static_cast<std::size_t>(c.grid.count() * c.block.count() * fields));
  const giwa::status state = giwa::launch(s, c, record, out.data());
  INFO(giwa::format_status(state).c_str());
  REQUIRE(state.ok());
  const std::vector<int64> got = out.to_host(), expected = model(c.grid, c.block, c.cluster).all();
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    CAPTURE(i / fields, i % fields);  // the thread and the field
    REQUIRE(got[i] == expected[i]);
  }
}

const dimensions some_blocks[] = {1, 31, 32, 33, {8, 4}, {5, 7}, {5, 3, 2}, {2, 2, 16}, 96, {1, 1, 64}};

// Marks where the index is inside, and counts the threads whose index is outside.
template <int N>
struct marked {
  unsigned* inside;  // [sizes]
  unsigned* outside;
  giwa::index<N> sizes;
};
template <int N, class Extents>
__global__ void __launch_bounds__(1024) mark(marked<N> out, Extents e) {
  if (const auto i = giwa::index_in(e)) {
    int64 at = 0;
    for (int d = 0; d < N; ++d) at = at * out.sizes[d] + (*i)[d];
    atomicAdd(out.inside + at, 1u);
  } else {
    atomicAdd(out.outside, 1u);
  }
}

// A launch gives position i exactly one thread if it is inside the launch's sizes, cut to N dimensions.
template <int N, int64... Sizes>
void check_index_in(const launch_config& c, const giwa::extents<Sizes...>& e) {
  CAPTURE(N, c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z);
  const int64 x = c.grid.x * c.block.x, y = c.grid.y * c.block.y, z = c.grid.z * c.block.z;
  giwa::index<N> sizes, launched;
  for (int d = 0; d < N; ++d) sizes[d] = e[d];
  if constexpr (N == 1)
    launched = {z * y * x};
  else if constexpr (N == 2)
    launched = {z * y, x};
  else
    launched = {z, y, x};

  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<unsigned> inside(static_cast<std::size_t>(e.size()), 0), outside(1, 0);
  const auto kernel = mark<N, giwa::extents<Sizes...>>;
  REQUIRE(giwa::launch(s, c, kernel, marked<N>{inside.data(), outside.data(), sizes}, e).ok());
  const std::vector<unsigned> counts = inside.to_host();
  int64 reached = 0;
  for (int64 r = 0; r < e.size(); ++r) {
    const giwa::index<N> i = giwa::delinearize(e, r);
    bool expected = true;
    for (int d = 0; d < N; ++d) expected = expected && i[d] < launched[d];
    reached += expected ? 1 : 0;
    REQUIRE(counts[static_cast<std::size_t>(r)] == (expected ? 1u : 0u));
  }
  CHECK(outside.to_host()[0] == x * y * z - reached);
}

}  // namespace

TEST_CASE("ranks, counts, positions and sizes at every scope") {
  for (const dimensions& grid : {dimensions{1}, {5}, {2, 3}, {3, 1, 2}, {2, 3, 4}})
    for (const dimensions& block : some_blocks) check({.grid = grid, .block = block});
  check({.grid = {1, 2, 3}, .block = 1024});
  check({.grid = 3, .block = {32, 8, 4}});
}

TEST_CASE("ranks, counts, positions and sizes in clusters") {
  if (giwa_test::device_attribute(cudaDevAttrClusterLaunch) == 0) {
    WARN("skipped: clusters need a GPU of compute capability 9.0");
    return;
  }
  for (const dimensions& cluster : {dimensions{2}, {1, 2}, {1, 1, 2}, {4}, {2, 2, 2}, {8}, {1, 4, 2}})
    for (const dimensions& clusters : {dimensions{1}, {3, 2}, {1, 2, 2}})
      for (const dimensions& block : {dimensions{32}, {33}, {5, 3, 2}, {16, 8}})
        check({.grid = {clusters.x * cluster.x, clusters.y * cluster.y, clusters.z * cluster.z},
               .block = block,
               .cluster = cluster});
}

TEST_CASE("index_in gives each position inside to one thread, and tells the threads outside") {
  for (const dimensions& grid : {dimensions{1}, {4}, {3, 2}, {2, 2, 2}})
    for (const dimensions& block : {dimensions{1}, {33}, {8, 4}, {4, 3, 5}}) {
      const launch_config c{.grid = grid, .block = block};
      check_index_in<1>(c, giwa::extents{1});
      check_index_in<1>(c, giwa::extents{61});
      check_index_in<2>(c, giwa::extents{7, 11});
      check_index_in<2>(c, giwa::extents{40, 3});
      check_index_in<2>(c, giwa::extents<giwa::dynamic, 13>{5});
      check_index_in<3>(c, giwa::extents{3, 5, 7});
      check_index_in<3>(c, giwa::extents<2, 9, 2>{});
      check_index_in<3>(c, giwa::extents{11, 1, 20});
    }
}
