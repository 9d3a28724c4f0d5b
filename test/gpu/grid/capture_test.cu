// SPDX-License-Identifier: MIT
// Every asynchronous call can be captured into a graph, in the mode that refuses whatever allocates or waits.
#include <cooperative_groups.h>

#include <giwa/device.hpp>
#include <giwa/grid.cuh>

#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::int64;
using giwa::launch;
using giwa::status;
using giwa_test::capture_and_replay;
using giwa_test::gpu_array;

namespace {

constexpr int n = 5000, replays = 3;

struct increment {
  int* out;
  GIWA_DEVICE void operator()(int64 i) const { ++out[i]; }
};
struct increment_2d {
  int* out;
  GIWA_DEVICE void operator()(const giwa::index<2>& i) const { ++out[i[0] * 50 + i[1]]; }
};
struct plus_one {
  GIWA_HOST_DEVICE int operator()(int x) const { return x + 1; }
};

__global__ void __launch_bounds__(256) increment_kernel(int* out, int size) {
  extern __shared__ int step[];
  step[threadIdx.x] = 1;
  __syncthreads();
  for (const int64 i : giwa::grid_stride(size)) out[i] += step[threadIdx.x];
}
__global__ void __launch_bounds__(256) increment_with_the_grid(int* out, int size) {
  cooperative_groups::this_grid().sync();
  for (const int64 i : giwa::grid_stride(size)) ++out[i];
}

struct increment_op {
  struct params {
    int* out;
    int64 size;
  };
  struct shared_storage {
    int step[20000];  // 80 KB: more than a launch gets without asking
  };
  static constexpr int max_threads = 256, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    shared.step[19999 - block.rank()] = 1;
    block.sync();
    for (const int64 i : giwa::grid_stride(block, p.size)) p.out[i] += shared.step[19999 - block.rank()];
  }
};

// What work() does once a replay is done as often as there are replays, and not while it is captured.
template <class Work>
void check(Work work) {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<int> out(n, 0);
  const status state = capture_and_replay(s, replays, [&] { return work(s.get(), out.data()); });
  INFO(giwa::format_status(state).c_str());
  REQUIRE(state.ok());
  CHECK(out.to_host() == std::vector<int>(n, replays));
  CHECK(giwa_test::no_error_left());
}

}  // namespace

// Each in a test case of its own, which runs alone as well: also the first call of a kernel may be captured.
TEST_CASE("for_all over a number is captured") {
  check([](cudaStream_t s, int* out) { return giwa::for_all(s, n, increment{out}); });
}
TEST_CASE("for_all over extents is captured") {
  check([](cudaStream_t s, int* out) { return giwa::for_all(s, giwa::extents{100, 50}, increment_2d{out}); });
}
TEST_CASE("for_all over sizes in braces is captured") {
  check([](cudaStream_t s, int* out) { return giwa::for_all(s, {100, n / 100}, increment_2d{out}); });
}
TEST_CASE("for_all over arrays is captured") {
  check([](cudaStream_t s, int* out) {
    const giwa::tensor_view<int, 1> view(out, {n});
    return giwa::for_all(s, giwa::elementwise{view, view}, plus_one{});
  });
}
TEST_CASE("launch of a kernel is captured") {
  check([](cudaStream_t s, int* out) {
    return launch(s, {.grid = 7, .block = 256, .shared_bytes = 2000}, increment_kernel, out, n);
  });
}
TEST_CASE("launch with more than 48 KB of shared memory is captured") {
  check([](cudaStream_t s, int* out) {
    return launch(s, {.grid = 7, .block = 256, .shared_bytes = 60000}, increment_kernel, out, n);
  });
}
TEST_CASE("a cooperative launch is captured") {
  check([](cudaStream_t s, int* out) {
    return launch(s, {.grid = 7, .block = 256, .cooperative = true}, increment_with_the_grid, out, n);
  });
}
TEST_CASE("a launch with clusters is captured") {
  if (giwa_test::device_attribute(cudaDevAttrClusterLaunch) == 0) {
    WARN("skipped: clusters need a GPU of compute capability 9.0");
    return;
  }
  check([](cudaStream_t s, int* out) {
    return launch(s, {.grid = 8, .block = 256, .shared_bytes = 2000, .cluster = 4}, increment_kernel, out, n);
  });
}
TEST_CASE("launch of an op is captured") {
  check([](cudaStream_t s, int* out) { return launch(s, {.grid = 7, .block = 256}, increment_op{}, {out, n}); });
}

TEST_CASE("launches without blocks are captured as nothing") {
  check([](cudaStream_t s, int* out) {
    const status kernel = launch(s, {.grid = 0, .block = 256}, increment_kernel, out, n);
    const status op = launch(s, {.grid = {7, 0}, .block = 256}, increment_op{}, {out, n});
    if (!kernel.ok() || !op.ok()) return status::invalid("test", "a launch without blocks failed");
    return giwa::for_all(s, n, increment{out});
  });
}

TEST_CASE("a refused launch does not spoil the capture around it") {
  check([](cudaStream_t s, int* out) {
    const int64 too_much = giwa_test::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) + 1;
    const status refused = launch(s, {.grid = 7, .block = 256, .shared_bytes = too_much}, increment_kernel, out, n);
    const status bad_size = giwa::for_all(s, -1, increment{out});
    if (refused.ok() || bad_size.ok()) return status::invalid("test", "a launch was not refused");
    return giwa::for_all(s, n, increment{out});
  });
}

TEST_CASE("events order two streams within a capture") {
  const giwa::stream other = giwa_test::new_stream();
  const auto fork = giwa::throw_if_failed(giwa::event::create(false)),
             join = giwa::throw_if_failed(giwa::event::create(false));
  check([&](cudaStream_t s, int* out) {
    if (const status state = fork.record(s); !state.ok()) return state;
    if (const status state = fork.hold(other); !state.ok()) return state;
    if (const status state = giwa::for_all(other, n / 2, increment{out}); !state.ok()) return state;
    if (const status state = join.record(other); !state.ok()) return state;
    if (const status state = giwa::for_all(s, n - n / 2, increment{out + n / 2}); !state.ok()) return state;
    return join.hold(s);
  });
}
