// SPDX-License-Identifier: MIT
// An op does the same on the device and on the host, bit for bit, and its launch has the same rules.
#include <giwa/grid.cuh>
#include <giwa/host_executor.cuh>

#include <string>
#include <vector>

#include "host/grid/ops.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::dimensions;
using giwa::int64;
using giwa::launch;
using giwa::launch_config;
using giwa::status;
using giwa::uint32;
using giwa_test::gpu_array;

namespace {

// Each op writes words; the same run on the host must write the same.
struct op_base {
  static constexpr int max_threads = 512, min_blocks = 1;
  struct params {
    uint32* out;       // [threads of the grid][words]
    uint32* counters;  // [64], zero
    int64 n;
  };
};

// Who each thread is.
struct identity_op : op_base {
  static constexpr int words = 19;
  using shared_storage = giwa::no_shared_storage;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    const int64 thread = block.block_rank() * block.size() + block.rank();
    uint32* out = p.out + thread * words;
    const giwa::index<3> at[] = {block.thread_index(), block.thread_extents(), block.block_index(),
                                 block.block_extents()};
    for (int i = 0; i < 4; ++i)
      for (int d = 0; d < 3; ++d) *out++ = static_cast<uint32>(at[i][d]);
    *out++ = static_cast<uint32>(block.rank());
    *out++ = static_cast<uint32>(block.size());
    *out++ = static_cast<uint32>(block.warp());
    *out++ = static_cast<uint32>(block.lane());
    *out++ = static_cast<uint32>(block.block_rank());
    *out++ = static_cast<uint32>(block.block_count());
    *out++ = static_cast<uint32>(p.n);
  }
};

// The sum of random floats: shuffles in each warp, then shared memory, then one thread.
struct reduction_op : op_base {
  static constexpr int words = 3;
  struct shared_storage {
    float partial[16];
    float total;
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    const giwa::philox random{42};
    float sum = 0;
    for (const int64 i : giwa::grid_stride(block, p.n)) sum += random.uniform<float>(static_cast<giwa::uint64>(i));
    const float mine = sum;
    for (int distance = 16; distance > 0; distance /= 2) sum += block.shuffle_xor(sum, distance);
    if (block.lane() == 0) shared.partial[block.warp()] = sum;
    block.sync();
    if (block.rank() == 0) {
      float total = 0;
      for (int warp = 0; warp < block.size() / 32; ++warp) total += shared.partial[warp];
      shared.total = total;
    }
    block.sync();
    const int64 thread = block.block_rank() * block.size() + block.rank();
    const float results[words] = {mine, sum, shared.total};
    __builtin_memcpy(p.out + thread * words, results, sizeof results);
  }
};

struct value_of_12_bytes {
  int a;
  short b;
  float c;
};

// Shuffles of all kinds, with every operand, and votes.
struct exchange_op : op_base {
  static constexpr int words = 4 * 40 + 9;
  using shared_storage = giwa::no_shared_storage;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    const int64 thread = block.block_rank() * block.size() + block.rank();
    const auto mine = static_cast<uint32>(1000 * thread + 7);
    uint32* out = p.out + thread * words;
    for (int operand = 0; operand < 40; ++operand) *out++ = block.shuffle(mine, operand);
    for (int distance = 0; distance < 40; ++distance) *out++ = distance < 32 ? block.shuffle_up(mine, distance) : 0;
    for (int distance = 0; distance < 40; ++distance) *out++ = distance < 32 ? block.shuffle_down(mine, distance) : 0;
    for (int mask = 0; mask < 40; ++mask) *out++ = mask < 32 ? block.shuffle_xor(mine, mask) : 0;
    const value_of_12_bytes v =
        block.shuffle(value_of_12_bytes{static_cast<int>(mine), static_cast<short>(block.lane()), 0.5f}, 5);
    *out++ = static_cast<uint32>(v.a);
    *out++ = static_cast<uint32>(v.b);
    *out++ = v.c == 0.5f ? 1 : 0;
    const int64 wide = block.shuffle_down(static_cast<int64>(mine) << 20, 1);
    *out++ = static_cast<uint32>(wide >> 20);
    *out++ = static_cast<uint32>(block.shuffle_up(static_cast<signed char>(block.lane() - 16), 3));
    *out++ = block.any(block.rank() == 40) ? 1 : 0;
    *out++ = block.all(block.rank() < 64) ? 1 : 0;
    *out++ = block.ballot(mine % 3 == 0);
    block.sync_warp();
    *out++ = block.ballot(true);
  }
};

// Atomics on shared and device memory; what is written does not depend on their order.
struct atomics_op : op_base {
  static constexpr int words = 1;
  struct shared_storage {
    int sum, smallest, largest;
    unsigned taken;
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    if (block.rank() == 0) shared = {0, 1000000, -1000000, 0};
    block.sync();
    const int value = (block.rank() * 37 + static_cast<int>(block.block_rank())) % 101 - 50;
    block.atomic_add(shared.sum, value);
    block.atomic_min(shared.smallest, value);
    block.atomic_max(shared.largest, value);
    const unsigned before = block.atomic_compare_exchange(shared.taken, 0, 1);  // one thread of the block sees 0
    if (before == 0) block.atomic_add(p.counters[0], 1);
    block.sync();
    block.atomic_add(p.counters[1 + block.rank() % 30], 1);
    block.atomic_max(p.counters[40], static_cast<unsigned>(block.rank()));
    if (block.rank() == 0) {
      block.atomic_exchange(p.counters[41], 5);
      block.atomic_add(*reinterpret_cast<float*>(p.counters + 42), 0.5f);
    }
    const int64 thread = block.block_rank() * block.size() + block.rank();
    p.out[thread] = static_cast<uint32>(shared.sum * 10000 + shared.smallest * 100 + shared.largest);
  }
};

// 100 KB of shared memory, all of it written and read by others.
struct large_op : op_base {
  static constexpr int words = 1;
  struct shared_storage {
    int value[25600];
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    for (const int64 i : giwa::block_stride(block, 25600))
      shared.value[i] = static_cast<int>(3 * i + block.block_rank());
    block.sync();
    uint32 sum = 0;
    for (const int64 i : giwa::block_stride(block, 25600)) sum += static_cast<uint32>(shared.value[25599 - i]);
    p.out[block.block_rank() * block.size() + block.rank()] = sum;
  }
};

template <class Op>
void check(const launch_config& c) {
  CAPTURE(c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z);
  const auto words = static_cast<std::size_t>(c.grid.count() * c.block.count() * Op::words);
  std::vector<uint32> out(words, 0xffffffffu), counters(64, 0);
  REQUIRE(launch(giwa::host, c, Op{}, {out.data(), counters.data(), 10007}).ok());

  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<uint32> out_gpu(words), counters_gpu(64, 0);
  const status state = launch(s, c, Op{}, {out_gpu.data(), counters_gpu.data(), 10007});
  INFO(giwa::format_status(state).c_str());
  REQUIRE(state.ok());
  REQUIRE(giwa::synchronize(s).ok());
  const std::vector<uint32> got = out_gpu.to_host();
  for (std::size_t i = 0; i < words; ++i) {
    if (got[i] == out[i]) continue;
    CAPTURE(i / Op::words, i % Op::words);  // the thread and the word
    REQUIRE(got[i] == out[i]);
  }
  REQUIRE(counters_gpu.to_host() == counters);
}

}  // namespace

TEMPLATE_TEST_CASE("an op on the device and on the host", "", identity_op, reduction_op, exchange_op, atomics_op,
                   large_op) {
  for (const dimensions& grid : {dimensions{1}, {5}, {2, 1, 2}})
    for (const dimensions& block : {dimensions{32}, {96}, {8, 8}, {4, 4, 8}, {512}})
      check<TestType>({.grid = grid, .block = block});
}

TEST_CASE("an op's launch is refused on the device as on the host") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<uint32> out(512), counters(64, 0);
  const op_base::params params{out.data(), counters.data(), 100};
  for (const launch_config& c : {launch_config{.block = 33},
                                 {.block = 544},
                                 {.block = 0},
                                 {.grid = -1, .block = 32},
                                 {.grid = {1, 70000}, .block = 32},
                                 {.block = 32, .shared_bytes = 16}}) {
    const status on_device = launch(s, c, identity_op{}, params),
                 on_host = launch(giwa::host, c, identity_op{}, params);
    CHECK_FALSE(on_device.ok());
    CHECK(on_device.argument == std::string(on_host.argument));
    CHECK(on_device.got == on_host.got);
    CHECK(giwa_test::no_error_left());
    REQUIRE(launch(s, {.block = 512}, large_op{}, params).ok());
    REQUIRE(giwa::synchronize(s).ok());
  }
}

TEST_CASE("an op runs in clusters") {
  if (giwa_test::device_attribute(cudaDevAttrClusterLaunch) == 0) {
    WARN("skipped: clusters need a GPU of compute capability 9.0");
    return;
  }
  const giwa::stream s = giwa_test::new_stream();
  const launch_config c{.grid = 8, .block = 64, .cluster = 4}, plain{.grid = 8, .block = 64};
  const gpu_array<uint32> clustered(8 * 64 * reduction_op::words), alone(8 * 64 * reduction_op::words), counters(64, 0);
  REQUIRE(launch(s, c, reduction_op{}, {clustered.data(), counters.data(), 10007}).ok());
  REQUIRE(launch(s, plain, reduction_op{}, {alone.data(), counters.data(), 10007}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(clustered.to_host() == alone.to_host());
}

TEST_CASE("a barrier for the grid: a ring of all threads that the GPU runs at once") {
  using giwa_test::ring_op;
  const giwa::stream s = giwa_test::new_stream();
  const int64 most = giwa::throw_if_failed(giwa::blocks_at_once<ring_op>());
  const gpu_array<giwa::grid_barrier> barrier(1, 0);  // of all launches, one after the other
  giwa::uint64 barriers = 0;
  const auto run = [&](const dimensions& grid, const dimensions& block, int rounds, int64 step) {
    CAPTURE(grid.x, grid.y, grid.z, block.x, block.y, rounds, step);
    const auto n = static_cast<std::size_t>(grid.count() * block.count());
    std::vector<int> before(n);
    for (std::size_t i = 0; i < n; ++i) before[i] = static_cast<int>(i * 37 % 1000);
    const gpu_array<int> now(before), next(n);
    const status state = launch(s, {.grid = grid, .block = block, .cooperative = true}, ring_op{},
                                {now.data(), next.data(), rounds, step, barrier.data()});
    if (!state.ok()) return state;
    REQUIRE(giwa::synchronize(s).ok());
    barriers += static_cast<giwa::uint64>(rounds);
    CHECK(barrier.to_host()[0].state == barriers << 32);  // nobody has arrived, and all barriers are counted
    const std::vector<int> got = rounds % 2 == 0 ? now.to_host() : next.to_host();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i)
      wrong += got[i] == before[(i + static_cast<std::size_t>(step * rounds)) % n] + rounds ? 0 : 1;
    CHECK(wrong == 0);
    return state;
  };
  for (const dimensions& grid : {dimensions{1}, {2}, {33}, {3, 4, 5}, {most}})
    for (const dimensions& block : {dimensions{32}, {16, 6}, {1024}})
      for (const int64 step : {int64{1}, block.count() + 1}) CHECK(run(grid, block, 101, step).ok());
  CHECK(run(most, 1024, 1000, 1025).ok());
  const status refused = run(most + 1, 1024, 1, 1);
  CHECK(refused.argument == std::string("grid"));
  CHECK(refused.expected == most);
  CHECK(refused.got == most + 1);
  CHECK(giwa_test::no_error_left());
  CHECK(run(most, 1024, 3, 1).ok());
}
