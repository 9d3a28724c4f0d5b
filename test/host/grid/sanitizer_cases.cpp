// SPDX-License-Identifier: MIT
// Ops with one flaw each, for the tests that want a sanitizer to name its line; the case is the program's argument.
#include "ops.hpp"

#include <giwa/grid/host_executor.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

using giwa::host;
using giwa::launch;
using namespace giwa_test;

enum class flaw { none, sync, sync_warp, blocks, grid, phase, overflow, underflow, memory };

/// Reverses each block's part of `data` through shared memory, after exchanges that order nothing: votes, shuffles and
/// atomics. With a flaw, one thing is wrong.
template <flaw Flaw>
struct reverse_op : op_limits {
  struct params {
    int* data;
    int* total;
    int n;
  };
  struct shared_storage {
    int value[64];
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    const int rank = block.rank(), other = block.size() - 1 - rank;
    const int i = static_cast<int>(block.block_rank()) * block.size() + rank;
    shared.value[rank] = p.data[i];  // flaw: sync
    block.atomic_add(*p.total, block.shuffle_xor(block.any(true) ? 1 : 0, 1));
    if constexpr (Flaw == flaw::sync) {
      block.sync_warp();
    } else {
      block.sync();
    }
    p.data[i] = shared.value[other];
    block.sync();

    shared.value[rank] = block.shuffle(rank, rank);  // flaw: sync_warp
    if constexpr (Flaw != flaw::sync_warp) block.sync_warp();
    block.atomic_add(*p.total, shared.value[rank ^ 1] - (block.shuffle_down(rank, 0) ^ 1));
    block.sync();

    if constexpr (Flaw == flaw::phase) {
      // Between two barriers, and rank 0 has reached the second one when rank 63 leaves the first: neither orders them.
      if (rank == 0) shared.value[0] = 1;  // flaw: phase
      if (rank == 63) block.atomic_add(*p.total, shared.value[0]);
      block.sync();
    }
    if constexpr (Flaw == flaw::blocks)
      if (rank == 0) *p.data = 7;                                       // flaw: blocks
    if constexpr (Flaw == flaw::overflow) shared.value[rank + 1] = 0;   // flaw: overflow
    if constexpr (Flaw == flaw::underflow) shared.value[rank - 1] = 0;  // flaw: underflow
    if constexpr (Flaw == flaw::memory)
      if (rank == 63) p.data[p.n] = 0;  // flaw: memory
  }
};

template <flaw Flaw>
int run() {
  std::vector<int> data(64 * 3);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int>(i);
  int total = 0;
  if (!launch(host, {.grid = 3, .block = 64}, reverse_op<Flaw>{}, {data.data(), &total, static_cast<int>(data.size())})
           .ok())
    return 2;
  bool right = total == 64 * 3;
  for (int i = 0; i < 64 * 3; ++i) right = right && data[static_cast<std::size_t>(i)] == i / 64 * 64 + 63 - i % 64;
  std::puts(right ? "right" : "wrong");
  return right ? 0 : 1;
}

/// Each block reads what the block two after it wrote, whose rank is even or odd like its own.
template <flaw Flaw>
struct neighbours_op : op_limits {
  struct params {
    int *data, *sums;  // (blocks)
    giwa::grid_barrier* barrier;
  };
  using shared_storage = giwa::no_shared_storage;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    const int64 rank = block.block_rank(), other = (rank + 2) % block.block_count();
    for (int round = 0; round < 4; ++round) {
      if (block.rank() == 0) p.data[rank] = round;  // flaw: grid
      block.sync_grid(*p.barrier);
      if (block.rank() == 40) p.sums[rank] += p.data[other];
      if (Flaw != flaw::grid || round != 2) block.sync_grid(*p.barrier);
    }
  }
};

template <flaw Flaw>
int run_grid() {
  std::vector<int> data(4), sums(4);
  giwa::grid_barrier barrier;
  const giwa::launch_config c{.grid = 4, .block = 64, .cooperative = true};
  return launch(host, c, neighbours_op<Flaw>{}, {data.data(), sums.data(), &barrier}).ok() && sums[3] == 6 ? 0 : 1;
}

// The results of the other ops are host_executor_test's; here only a sanitizer looks at them.
int run_right_ops() {
  std::vector<giwa::int64> in(2 * 256, 1), scanned(in.size());
  std::vector<int> numbers(1000, 5), sums(4), histogram(16);
  std::vector<float> matrix(70 * 45, 1.f), transposed(matrix.size());
  float sum = 0;
  double sum64 = 0;
  int smallest = 0, last = 0, taken = -1, winners = 0;
  unsigned largest = 0;
  bool ok = launch(host, {.grid = 2, .block = 256}, block_scan_op{}, {in.data(), scanned.data()}).ok();
  ok = launch(host, {.grid = 4, .block = 256}, block_sum_op{}, {numbers.data(), sums.data(), 1000}).ok() && ok;
  ok = launch(host, {.grid = 2, .block = 128}, atomics_op{},
              {numbers.data(), 1000, histogram.data(), &sum, &sum64, &smallest, &largest, &last, &taken, &winners})
           .ok() &&
       ok;
  ok = launch(host, {.grid = {2, 3}, .block = {32, 8}}, transpose_op{}, {matrix.data(), transposed.data(), 70, 45})
           .ok() &&
       ok;
  for (float& x : transposed) ok = ok && x == 1.f;  // what the threads wrote is the caller's now
  return ok && run<flaw::none>() == 0 && run_grid<flaw::none>() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto is = [&](const char* name) { return argc == 2 && std::strcmp(argv[1], name) == 0; };
  if (is("none")) return run_right_ops();
  if (is("sync")) return run<flaw::sync>();
  if (is("sync_warp")) return run<flaw::sync_warp>();
  if (is("blocks")) return run<flaw::blocks>();
  if (is("grid")) return run_grid<flaw::grid>();
  if (is("phase")) return run<flaw::phase>();
  if (is("overflow")) return run<flaw::overflow>();
  if (is("underflow")) return run<flaw::underflow>();
  if (is("memory")) return run<flaw::memory>();
  std::puts("usage: sanitizer_cases none|sync|sync_warp|blocks|grid|phase|overflow|underflow|memory");
  return 64;
}
