// SPDX-License-Identifier: MIT
// launch() of plain kernels: arguments, shared memory, cooperative grids and clusters; and refusals that name the number.
#include <cooperative_groups.h>

#include <giwa/device/pointer.hpp>
#include <giwa/grid.cuh>

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::bound;
using giwa::dimensions;
using giwa::int64;
using giwa::launch;
using giwa::launch_config;
using giwa::max_int64;
using giwa::status;
using giwa::status_code;
using giwa::uint64;
using giwa_test::device_attribute;
using giwa_test::gpu_array;

namespace {

struct pair {
  int first;
  double second;
};

__global__ void __launch_bounds__(32) store_arguments(double* out, signed char a, unsigned b, int64 c, uint64 d,
                                                      double e, const float* f, pair g, bool h) {
  out[0] = a;
  out[1] = b;
  out[2] = static_cast<double>(c);
  out[3] = static_cast<double>(d);
  out[4] = e;
  out[5] = f == nullptr ? 0 : 1;
  out[6] = g.first + g.second;
  out[7] = h ? 1 : 0;
}
__global__ void __launch_bounds__(32) take_unsigned_char(unsigned char) {}
__global__ void __launch_bounds__(32) take_int(int) {}
__global__ void __launch_bounds__(32) take_unsigned(unsigned) {}
__global__ void __launch_bounds__(32) take_int64(int64) {}
__global__ void __launch_bounds__(32) take_uint64(uint64) {}

__device__ int times_called;
__global__ void __launch_bounds__(128) no_parameters() {
  if (threadIdx.x == 0) atomicAdd(&times_called, 1);
}

__global__ void __launch_bounds__(1024) count_threads(unsigned* threads) { atomicAdd(threads, 1u); }

// Fills all of the dynamic shared memory and sums it up: sum = blocks * the sum of i % 251 over the bytes.
__global__ void __launch_bounds__(256) sum_shared(unsigned bytes, unsigned long long* sum) {
  extern __shared__ unsigned char dynamic_shared[];
  for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) dynamic_shared[i] = static_cast<unsigned char>(i % 251);
  __syncthreads();
  unsigned long long mine = 0;
  for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) mine += dynamic_shared[bytes - 1 - i];
  atomicAdd(sum, mine);
}
// Has 1024 bytes of its own as well.
__global__ void __launch_bounds__(256) with_static_shared(unsigned* out) {
  extern __shared__ unsigned dynamic_word[];
  __shared__ unsigned own[256];
  own[threadIdx.x] = threadIdx.x;
  if (threadIdx.x == 0) dynamic_word[0] = 1;
  __syncthreads();
  if (threadIdx.x == 0) out[0] = own[31] + dynamic_word[0];
}

// Never launched: nobody has raised its limit of shared memory.
__global__ void __launch_bounds__(256) never_launched(int* out) {
  extern __shared__ int never_used[];
  out[threadIdx.x] = never_used[threadIdx.x];
}

// Each block writes its rank, all wait for all, each block sums what the others wrote.
__global__ void __launch_bounds__(128) sum_over_the_grid(unsigned* ranks, unsigned long long* sums) {
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (threadIdx.x == 0) ranks[block] = block;
  cooperative_groups::this_grid().sync();
  unsigned long long mine = 0;
  for (unsigned i = threadIdx.x; i < blocks; i += blockDim.x) mine += ranks[i];
  atomicAdd(sums + block, mine);
}

// Each block's place in its cluster, by CUDA's own variables, after a barrier of the whole cluster.
__global__ void __launch_bounds__(1024) record_cluster(unsigned* blocks_of_cluster) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
  if (threadIdx.x == 0) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    blocks_of_cluster[block] = __clusterSizeInBlocks();
  }
#else
  static_cast<void>(blocks_of_cluster);
#endif
}

// A launch that must be refused: with this argument, leaving no error behind and the stream in working order. The bodies
// stand outside the class: with Catch2 3.4 and GCC 13, nvcc 13.0's front end does not come back from checks inside it.
class refusals {
 public:
  refusals() : stream_(giwa_test::new_stream()), threads_(1, 0) {}
  bool operator()(const status& state, const char* argument);
  bool operator()(const status& state, const char* argument, bound relation, int64 expected, int64 got);
  cudaStream_t stream() const { return stream_; }

 private:
  giwa::stream stream_;
  gpu_array<unsigned> threads_;
};

bool refusals::operator()(const status& state, const char* argument) {
  INFO(giwa::format_status(state).c_str());
  CHECK_FALSE(state.ok());
  CHECK(state.argument == std::string(argument));
  CHECK(giwa_test::no_error_left());
  threads_.fill(0);
  CHECK(launch(stream_, {.grid = 3, .block = 64}, count_threads, threads_.data()).ok());
  CHECK(giwa::synchronize(stream_).ok());
  return threads_.to_host()[0] == 192;
}

bool refusals::operator()(const status& state, const char* argument, bound relation, int64 expected, int64 got) {
  CHECK(state.code == status_code::invalid_argument);
  CHECK(state.relation == relation);
  CHECK(state.expected == expected);
  CHECK(state.got == got);
  return (*this)(state, argument);
}

template <class... Parameters>
int64 blocks_at_once(void (*kernel)(Parameters...), int threads) {
  int blocks = 0;
  giwa_test::check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0));
  return blocks * device_attribute(cudaDevAttrMultiProcessorCount);
}

}  // namespace

TEST_CASE("arguments convert to the kernel's parameters") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<double> out(8);
  const float* const null = nullptr;
  REQUIRE(
      launch(s, {}, store_arguments, out.data(), -128, 4294967295, 7u, short{8}, 2.5f, null, pair{1, 0.5}, true).ok());
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(out.to_host() == std::vector<double>{-128, 4294967295.0, 7, 8, 2.5, 0, 1.5, 1});
  const float host = 0;
  REQUIRE(launch(s, {}, store_arguments, out.data(), 'a', 0, -max_int64 - 1, max_int64, 3, &host, pair{2, 2}, 0).ok());
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(out.to_host() == std::vector<double>{97, 0, -9223372036854775808.0, 9223372036854775807.0, 3, 1, 4, 0});

  int* counter = nullptr;
  giwa_test::check_cuda(cudaGetSymbolAddress(reinterpret_cast<void**>(&counter), times_called));
  giwa_test::check_cuda(cudaMemset(counter, 0, sizeof(int)));
  giwa_test::check_cuda(cudaDeviceSynchronize());
  REQUIRE(launch(s, {.grid = {2, 3, 4}, .block = 128}, no_parameters).ok());
  REQUIRE(giwa::synchronize(s).ok());
  int called = 0;
  giwa_test::check_cuda(cudaMemcpy(&called, counter, sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(called == 24);
}

TEST_CASE("an integer that its parameter cannot hold is refused, one that it can is not") {
  refusals refused;
  const cudaStream_t s = refused.stream();
  for (const int value : {0, 1, 127, 128, 255}) CHECK(launch(s, {}, take_unsigned_char, value).ok());
  for (const int value : {-1, 256, -2147483647}) CHECK(refused(launch(s, {}, take_unsigned_char, value), "arguments"));
  CHECK(launch(s, {}, take_int, int64{2147483647}).ok());
  CHECK(launch(s, {}, take_int, -int64{2147483648}).ok());
  CHECK(refused(launch(s, {}, take_int, int64{2147483648}), "arguments"));
  CHECK(refused(launch(s, {}, take_int, 4294967295u), "arguments"));
  CHECK(refused(launch(s, {}, take_unsigned, -1), "arguments"));
  CHECK(refused(launch(s, {}, take_unsigned, int64{1} << 32), "arguments"));
  CHECK(launch(s, {}, take_unsigned, 4294967295).ok());
  CHECK(refused(launch(s, {}, take_int64, ~uint64{0}), "arguments"));
  CHECK(launch(s, {}, take_int64, static_cast<uint64>(max_int64)).ok());
  CHECK(refused(launch(s, {}, take_uint64, -1), "arguments"));
  CHECK(launch(s, {}, take_uint64, ~uint64{0}).ok());
  CHECK(launch(s, {}, take_uint64, true).ok());
}

TEST_CASE("a grid and a block of any allowed shape") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<unsigned> threads(1);
  for (const launch_config& c : {launch_config{},
                                 {.grid = 65535, .block = 1},
                                 {.grid = {1, 65535}, .block = 1},
                                 {.grid = {1, 1, 65535}, .block = 1},
                                 {.grid = {7, 5, 3}, .block = {3, 5, 7}},
                                 {.grid = 3, .block = {1, 1, 64}},
                                 {.grid = 3, .block = {1, 1024}},
                                 {.grid = 100000, .block = 32}}) {
    CAPTURE(c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z);
    giwa_test::check_cuda(cudaMemset(threads.data(), 0, 4));
    giwa_test::check_cuda(cudaDeviceSynchronize());
    REQUIRE(launch(s, c, count_threads, threads.data()).ok());
    REQUIRE(threads.to_host()[0] == c.grid.count() * c.block.count());
  }
}

TEST_CASE("shapes that no GPU takes are refused before the launch") {
  refusals refused;
  const cudaStream_t s = refused.stream();
  unsigned* const none = nullptr;
  CHECK(refused(launch(s, {.grid = {1, 70000}}, count_threads, none), "grid.y", bound::at_most, 65535, 70000));
  CHECK(refused(launch(s, {.grid = {1, 1, 70000}}, count_threads, none), "grid.z", bound::at_most, 65535, 70000));
  CHECK(refused(launch(s, {.grid = int64{1} << 32}, count_threads, none), "grid.x", bound::at_most, 2147483647,
                int64{1} << 32));
  CHECK(refused(launch(s, {.grid = (int64{1} << 32) + 1}, count_threads, none), "grid.x", bound::at_most, 2147483647,
                (int64{1} << 32) + 1));
  CHECK(refused(launch(s, {.grid = -5}, count_threads, none), "grid.x", bound::at_least, 0, -5));
  CHECK(refused(launch(s, {.grid = 0, .block = 1025}, count_threads, none), "block.x", bound::at_most, 1024, 1025));
  CHECK(refused(launch(s, {.block = {32, 33}}, count_threads, none), "block", bound::at_most, 1024, 1056));
  CHECK(refused(launch(s, {.block = {1, 1, 65}}, count_threads, none), "block.z", bound::at_most, 64, 65));
  CHECK(refused(launch(s, {.shared_bytes = -1}, count_threads, none), "shared_bytes", bound::at_least, 0, -1));
  CHECK(refused(launch(s, {.grid = 3, .cluster = 2}, count_threads, none), "cluster"));
  CHECK(refused(launch(s, {.grid = 17, .cluster = 17}, count_threads, none), "cluster.x", bound::at_most, 16, 17));
  CHECK(refused(launch(s, {}, static_cast<void (*)(unsigned*)>(nullptr), none), "kernel"));
}

TEST_CASE("a block larger than the kernel's launch bounds is refused with the bound") {
  refusals refused;
  for (const int64 threads : {129, 160, 1024})
    CHECK(refused(launch(refused.stream(), {.block = threads}, no_parameters), "block", bound::at_most, 128, threads));
  CHECK(launch(refused.stream(), {.block = 128}, no_parameters).ok());
}

TEST_CASE("shared memory up to what the GPU allows needs no further call, and more is refused with the number") {
  refusals refused;
  const cudaStream_t s = refused.stream();
  const int64 limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  REQUIRE(limit >= 64 << 10);
  for (const int64 bytes :
       {int64{1}, int64{48 << 10}, int64{(48 << 10) + 1}, int64{64 << 10}, limit - 1, limit, int64{1000}, limit}) {
    CAPTURE(bytes);
    const gpu_array<unsigned long long> sum(1, 0);
    unsigned long long expected = 0;
    for (int64 i = 0; i < bytes; ++i) expected += static_cast<unsigned long long>(i % 251);
    const status state = launch(s, {.grid = 5, .block = 256, .shared_bytes = bytes}, sum_shared, bytes, sum.data());
    INFO(giwa::format_status(state).c_str());
    REQUIRE(state.ok());
    REQUIRE(giwa::synchronize(s).ok());
    REQUIRE(sum.to_host()[0] == 5 * expected);
  }
  unsigned long long* const none = nullptr;
  for (const int64 bytes : {limit + 1, 2 * limit, int64{1} << 31, int64{1} << 40, max_int64})
    CHECK(refused(launch(s, {.block = 256, .shared_bytes = bytes}, sum_shared, 1u, none), "shared_bytes",
                  bound::at_most, limit, bytes));
  // What the kernel has of its own counts as well: by default both together have 48 KB.
  const gpu_array<unsigned> out(1);
  const int64 rest = limit - 1024;
  REQUIRE(launch(s, {.block = 256, .shared_bytes = 48 << 10}, with_static_shared, out.data()).ok());
  CHECK(refused(launch(s, {.block = 256, .shared_bytes = limit}, with_static_shared, out.data()), "shared_bytes",
                bound::at_most, rest, limit));
  REQUIRE(launch(s, {.block = 256, .shared_bytes = rest}, with_static_shared, out.data()).ok());
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(out.to_host()[0] == 32);
  // No call lowers what a larger one needs.
  REQUIRE(launch(s, {.block = 256, .shared_bytes = 56 << 10}, with_static_shared, out.data()).ok());
  with_static_shared<<<1, 256, static_cast<std::size_t>(rest), s>>>(out.data());
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(giwa::synchronize(s).ok());
}

TEST_CASE("a cooperative grid runs where it fits, and is refused with the number where it does not") {
  refusals refused;
  const cudaStream_t s = refused.stream();
  const int64 most = blocks_at_once(sum_over_the_grid, 128);
  const auto run = [&](const dimensions& grid) {
    const auto blocks = static_cast<std::size_t>(grid.count());
    const gpu_array<unsigned> ranks(blocks);
    const gpu_array<unsigned long long> sums(blocks, 0);
    const launch_config c{.grid = grid, .block = 128, .cooperative = true};
    const status state = launch(s, c, sum_over_the_grid, ranks.data(), sums.data());
    if (!state.ok()) return state;
    REQUIRE(giwa::synchronize(s).ok());
    CHECK(sums.to_host() == std::vector<unsigned long long>(blocks, blocks * (blocks - 1) / 2));
    return state;
  };
  CHECK(run(1).ok());
  CHECK(run({2, 3, 4}).ok());
  CHECK(run(most).ok());
  CHECK(refused(run(most + 1), "grid", bound::at_most, most, most + 1));
  CHECK(refused(run({most, 2}), "grid", bound::at_most, most, 2 * most));

  const giwa::result<launch_config> filled = giwa::fill_gpu(sum_over_the_grid);
  REQUIRE(filled.ok());
  launch_config c = filled.value;
  c.cooperative = true;
  const auto blocks = static_cast<std::size_t>(c.grid.count());
  const gpu_array<unsigned> ranks(blocks);
  const gpu_array<unsigned long long> sums(blocks, 0);
  REQUIRE(launch(s, c, sum_over_the_grid, ranks.data(), sums.data()).ok());
  CHECK(sums.to_host() == std::vector<unsigned long long>(blocks, blocks * (blocks - 1) / 2));
}

TEST_CASE("clusters run, or the refusal says why") {
  refusals refused;
  const cudaStream_t s = refused.stream();
  if (device_attribute(cudaDevAttrClusterLaunch) == 0) {
    for (const int64 blocks : {2, 8, 16}) {
      const status state = launch(s, {.grid = blocks, .block = 32, .cluster = blocks}, record_cluster, nullptr);
      CHECK(state.code == status_code::not_supported);
      CHECK(refused(state, "cluster"));
    }
    WARN("skipped: clusters need a GPU of compute capability 9.0");
    return;
  }
  const auto run = [&](launch_config c) {
    const auto blocks = static_cast<std::size_t>(c.grid.count());
    const gpu_array<unsigned> sizes(blocks, 0);
    CAPTURE(c.grid.x, c.grid.y, c.grid.z, c.cluster.x, c.cluster.y, c.cluster.z);
    const status state = launch(s, c, record_cluster, sizes.data());
    if (!state.ok()) return state;
    REQUIRE(giwa::synchronize(s).ok());
    CHECK(sizes.to_host() == std::vector<unsigned>(blocks, static_cast<unsigned>(c.cluster.count())));
    return state;
  };
  for (const dimensions& cluster : {dimensions{1}, {2}, {4}, {8}, {1, 2}, {1, 1, 4}, {2, 2, 2}, {2, 1, 3}})
    for (const int64 times : {1, 5}) {
      const dimensions grid{cluster.x * times, cluster.y * 2, cluster.z};
      const status state = run({.grid = grid, .block = 64, .cluster = cluster});
      INFO(giwa::format_status(state).c_str());
      CHECK(state.ok());
    }
  CHECK(run({.grid = 4, .block = 64, .cluster = 2, .cooperative = true}).ok());

  // 16 blocks only where a part of the GPU has that many multiprocessors, or room for several blocks on one.
  cudaLaunchConfig_t query{};
  query.gridDim = 32;
  query.blockDim = 64;
  int largest = 0;
  giwa_test::check_cuda(cudaFuncSetAttribute(record_cluster, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  giwa_test::check_cuda(cudaOccupancyMaxPotentialClusterSize(&largest, record_cluster, &query));
  giwa_test::check_cuda(cudaFuncSetAttribute(record_cluster, cudaFuncAttributeNonPortableClusterSizeAllowed, 0));
  const status sixteen = run({.grid = 32, .block = 64, .cluster = 16});
  if (largest >= 16)
    CHECK(sixteen.ok());
  else
    CHECK(refused(sixteen, "cluster", bound::at_most, largest, 16));

  CHECK(refused(run({.grid = {8, 7}, .block = 64, .cluster = {8, 2}}), "cluster"));
  const int64 limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const status large = run({.grid = 32, .block = 1024, .shared_bytes = limit, .cluster = 16});
  INFO(giwa::format_status(large).c_str());
  CHECK((large.ok() || (refused(large, "cluster") && large.relation == bound::at_most && large.got == 16)));
}

TEST_CASE("occupancy, and the configurations that follow from it") {
  const int64 processors = device_attribute(cudaDevAttrMultiProcessorCount);
  for (const int threads : {1, 32, 100, 128}) {
    const giwa::result<int> r = giwa::resident_blocks(no_parameters, threads);
    REQUIRE(r.ok());
    CHECK(r.value * processors == blocks_at_once(no_parameters, threads));
  }
  for (const int64 n : {int64{1}, int64{31}, int64{128}, int64{129}, int64{1000003}, int64{1} << 36}) {
    const giwa::result<launch_config> c = giwa::cover(no_parameters, n);
    CAPTURE(n);
    REQUIRE(c.ok());
    CHECK(c.value.block.count() <= 128);
    CHECK(c.value.block.count() % 32 == 0);
    CHECK(c.value.grid.x * c.value.block.x >= n);
    CHECK((c.value.grid.x - 1) * c.value.block.x < n);
  }
  const giwa::result<launch_config> narrow = giwa::cover(take_int, 100);  // whose blocks have at most 32 threads
  REQUIRE(narrow.ok());
  CHECK((narrow.value.block.count() == 32 && narrow.value.grid.count() == 4));
  CHECK(giwa::cover(no_parameters, int64{1} << 50).state.argument == std::string("grid.x"));
  for (const int waves : {1, 3}) {
    const giwa::result<launch_config> c = giwa::fill_gpu(count_threads, waves);
    REQUIRE(c.ok());
    CHECK(c.value.grid.x == waves * blocks_at_once(count_threads, static_cast<int>(c.value.block.x)));
  }
  // Shared memory beyond the default of 48 KB, which launch() would grant.
  const int64 limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  for (const int64 bytes : {int64{64 << 10}, limit}) {
    CAPTURE(bytes);
    const giwa::result<launch_config> c = giwa::fill_gpu(never_launched, 1, bytes);
    INFO(giwa::format_status(c.state).c_str());
    REQUIRE(c.ok());
    CHECK(c.value.shared_bytes == bytes);
    CHECK(c.value.grid.x >= processors);
    const giwa::result<int> resident = giwa::resident_blocks(never_launched, 256, bytes);
    REQUIRE(resident.ok());
    CHECK(resident.value >= 1);
    CHECK(resident.value <= device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / bytes);
  }
  const giwa::result<launch_config> impossible = giwa::fill_gpu(never_launched, 1, limit + 1);
  CHECK_FALSE(impossible.ok());
  CHECK(giwa_test::no_error_left());
}
