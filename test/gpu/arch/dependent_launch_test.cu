// SPDX-License-Identifier: MIT
// Kernels that may start before the one before has ended: a chain of them gives what it gives in order, also in a graph.
#include <giwa/arch/dependent_launch.cuh>
#include <giwa/device/environment.cuh>
#include <giwa/grid.cuh>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::launch;
using giwa::status;
using giwa::uint32;
using giwa_test::gpu_array;

namespace {

constexpr int threads = 128, blocks = 40, size = threads * blocks;

// out[i] = 3 in[mirror image of i] + 1; some blocks are slow, so that who does not wait reads what is not there yet.
template <class = void>
__global__ void __launch_bounds__(threads) step(const uint32* in, uint32* out) {
  giwa::arch::launch_dependents();
  giwa::arch::wait_for_previous_kernel();
  const auto i = blockIdx.x * threads + threadIdx.x;
  const uint32 value = 3 * in[size - 1 - i] + 1;
  if (blockIdx.x % 5 == 0)
    for (int nap = 0; nap < 20; ++nap) __nanosleep(1000);
  out[i] = value;
}

struct step_op {
  struct params {
    const uint32* in;
    uint32* out;
  };
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = threads, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    giwa::arch::launch_dependents();
    giwa::arch::wait_for_previous_kernel();
    const auto i = block.block_rank() * threads + block.rank();
    p.out[i] = 3 * p.in[size - 1 - i] + 1;
  }
};

constexpr giwa::launch_config dependent{.grid = blocks, .block = threads, .dependent = true};

// `length` steps from a to b and back; three of four are dependent.
status chain(cudaStream_t s, uint32* a, uint32* b, int length) {
  for (int i = 0; i < length; ++i) {
    giwa::launch_config c = dependent;
    c.dependent = i % 4 != 3;
    c.cluster = giwa_test::capability() >= 90 && i % 8 == 2 ? 2 : 1;
    const uint32* const in = i % 2 == 0 ? a : b;
    uint32* const out = i % 2 == 0 ? b : a;
    const status state = i % 3 == 0 ? launch(s, c, step_op{}, {in, out}) : launch(s, c, step<>, in, out);
    if (!state.ok()) return state;
  }
  return {};
}

std::vector<uint32> expected_chain(std::vector<uint32> values, int length) {
  for (int i = 0; i < length; ++i) {
    std::vector<uint32> next(values.size());
    for (std::size_t j = 0; j < next.size(); ++j) next[j] = 3 * values[values.size() - 1 - j] + 1;
    values = next;
  }
  return values;
}

std::vector<uint32> numbers() {
  std::vector<uint32> values(size);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32>(i * i);
  return values;
}

// Lets the next kernel start, and waits a while to hear from it.
template <class = void>
__global__ void __launch_bounds__(32) listen(volatile int* word, int* heard) {
  giwa::arch::launch_dependents();
  if (threadIdx.x != 0) return;
  for (int nap = 0; nap < 100000 && *word == 0; ++nap) __nanosleep(1000);
  *heard = *word;
}
template <class = void>
__global__ void __launch_bounds__(32) speak(volatile int* word) {
  if (threadIdx.x == 0) *word = 1;
  giwa::arch::wait_for_previous_kernel();
}

}  // namespace

TEST_CASE("a chain of dependent kernels gives the results of the kernels in order") {
  constexpr int length = 60;
  const giwa::stream s = giwa_test::new_stream();
  const std::vector<uint32> start = numbers();
  const gpu_array<uint32> a(start), b(start.size());
  const status state = chain(s, a.data(), b.data(), length);
  INFO(giwa::format_status(state).c_str());
  REQUIRE(state.ok());
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(a.to_host() == expected_chain(start, length));
  CHECK(giwa_test::no_error_left());
}

TEST_CASE("a chain of dependent kernels in a graph gives the same") {
  constexpr int length = 20, replays = 3;
  const giwa::stream s = giwa_test::new_stream();
  const std::vector<uint32> start = numbers();
  const gpu_array<uint32> a(start), b(start.size());
  const status state = giwa_test::capture_and_replay(s, replays, [&] { return chain(s, a.data(), b.data(), length); });
  INFO(giwa::format_status(state).c_str());
  REQUIRE(state.ok());
  CHECK(a.to_host() == expected_chain(start, replays * length));
}

TEST_CASE("a dependent kernel starts before the one before it has ended, and no other does") {
  if (giwa::throw_if_failed(giwa::code_for_current_device()).ptx < 90) {
    WARN("skipped: dependent launches need a GPU of compute capability 9.0, and a program built for it");
    return;
  }
  if (giwa_test::small_mode()) return;  // compute-sanitizer runs kernels one by one
  const giwa::stream s = giwa_test::new_stream();
  // The first launch of a kernel loads it, which may wait for what is running.
  const gpu_array<int> spoken(1), unused(1);
  REQUIRE(launch(s, {.block = 32}, speak<>, spoken.data()).ok());
  REQUIRE(launch(s, {.block = 32}, listen<>, spoken.data(), unused.data()).ok());
  REQUIRE(giwa::synchronize(s).ok());
  for (const bool early : {true, false}) {
    const gpu_array<int> word(1, 0), heard(1);
    REQUIRE(launch(s, {.block = 32}, listen<>, word.data(), heard.data()).ok());
    REQUIRE(launch(s, {.block = 32, .dependent = early}, speak<>, word.data()).ok());
    REQUIRE(giwa::synchronize(s).ok());
    CHECK(heard.to_host()[0] == (early ? 1 : 0));
  }
}

TEST_CASE("a kernel without the instruction to wait does not start early, whatever its launch says") {
  const bool waits = giwa::throw_if_failed(giwa::code_for_current_device()).ptx >= 90;
  const auto config_of = [](const void* kernel) {
    return giwa::throw_if_failed(giwa::detail::for_code_of(kernel, dependent));
  };
  CHECK(config_of(reinterpret_cast<const void*>(&step<>)).dependent == waits);
  CHECK(config_of(reinterpret_cast<const void*>(&giwa::detail::entry<step_op>)).dependent == waits);
}
