// SPDX-License-Identifier: MIT
// mbarriers: phases and parities, bytes that are expected, arrivals from other blocks of a cluster, laps in random order.
#include <giwa/arch/cluster.cuh>
#include <giwa/arch/mbarrier.cuh>
#include <giwa/arch/tensor_copy.cuh>

#include "support/hopper.cuh"

using giwa_test::gpu_array, giwa_test::run_op;
namespace arch = giwa::arch;

namespace {

/// One thread walks a barrier of two arrivals through its phases, and writes down which parities are over.
struct phases_op {
  static constexpr int max_threads = 32, min_blocks = 1;
  struct params {
    int* over;  // (8, 2)
  };
  struct shared_storage {
    arch::mbarrier barrier;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    if (block.rank() != 0) return;
    int* out = p.over;
    const auto note = [&] {
      for (giwa::uint32 parity = 0; parity < 2; ++parity) *out++ = s.barrier.is_over(parity) ? 1 : 0;
    };
    s.barrier.initialize(2);
    arch::mbarriers_initialized();
    note();
    for (int i = 0; i < 6; ++i) {
      s.barrier.arrive();
      note();
    }
    s.barrier.arrive();
    s.barrier.arrive();
    s.barrier.wait(1);  // for the fourth phase, which is over
    note();
  }
};

/// A barrier that has its arrival waits for the last of the bytes that were announced. `parts` copies of 64 bytes.
struct bytes_op {
  static constexpr int max_threads = 32, min_blocks = 1, parts = 4;
  struct params {
    const int* from;  // (parts, 16)
    int* to;
    int* over;  // after each part
  };
  struct shared_storage {
    alignas(16) int target[parts * 16];
    arch::mbarrier barrier;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    if (block.rank() == 0) {
      s.barrier.initialize(1);
      arch::mbarriers_initialized();
      s.barrier.arrive_and_expect(parts * 64);
      for (int i = 0; i < parts; ++i) {
        arch::load_bytes(s.target + 16 * i, p.from + 16 * i, 64, s.barrier);
        bool over = false;
        for (int polls = 0; polls < 1000 && !over; ++polls) over = s.barrier.is_over(0);
        p.over[i] = over ? 1 : 0;
      }
    }
    block.sync();
    s.barrier.wait(0);
    for (int i = block.rank(); i < parts * 16; i += block.size()) p.to[i] = s.target[i];
  }
};

/// Half of the block's warps produce a number a lap, the others consume it, through a pair of barriers.
struct laps_op {
  static constexpr int max_threads = 256, min_blocks = 1;
  struct params {
    int laps;
    unsigned sleep;  // ns
    unsigned* wrong;
  };
  struct shared_storage {
    arch::mbarrier full, empty;
    int number[128];
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    if (block.rank() == 0) {
      s.full.initialize(128);
      s.empty.initialize(128);
      arch::mbarriers_initialized();
    }
    block.sync();
    const int me = block.rank() % 128;
    for (int lap = 0; lap < p.laps; ++lap) {
      const auto parity = static_cast<giwa::uint32>(lap & 1);
      giwa_test::sleep_at_random(p.sleep);
      if (block.rank() < 128) {
        s.empty.wait(parity ^ 1);
        s.number[me] = lap * 128 + me;
        s.full.arrive();
      } else {
        s.full.wait(parity);
        giwa_test::sleep_at_random(p.sleep);
        const int from = (me * 37 + lap) % 128;
        if (s.number[from] != lap * 128 + from) atomicAdd(p.wrong, 1u);
        s.empty.arrive();
      }
    }
  }
};

/// Each lap, one thread of each block of a cluster says in global memory how far it is, and arrives at the barriers of all.
/// Who has waited for its own must find all the others as far.
struct remote_op {
  static constexpr int max_threads = 32, min_blocks = 1;
  struct params {
    int laps;
    unsigned sleep;
    int* progress;  // (blocks)
    unsigned* wrong;
  };
  struct shared_storage {
    arch::mbarrier barrier;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int rank = arch::cluster_rank(), blocks = arch::cluster_size();
    int* const all = p.progress + (block.block_rank() - rank);
    if (block.rank() == 0) {
      s.barrier.initialize(blocks);
      arch::mbarriers_initialized();
    }
    arch::cluster_sync();
    if (block.rank() == 0)
      for (int lap = 0; lap < p.laps; ++lap) {
        giwa_test::sleep_at_random(p.sleep);
        atomicExch(all + rank, lap + 1);
        __threadfence();
        for (int other = 0; other < blocks; ++other) s.barrier.arrive_in((rank + other) % blocks);
        s.barrier.wait(static_cast<giwa::uint32>(lap & 1));
        __threadfence();
        for (int other = 0; other < blocks; ++other) {
          const int at = atomicAdd(all + other, 0);
          if (at < lap + 1 || at > lap + 2) atomicAdd(p.wrong, 1u);
        }
      }
    arch::cluster_sync();
  }
};

}  // namespace

TEST_CASE("a phase is over after its arrivals, and the parities alternate") {
  if (!giwa_test::has_tensor_copies()) return;
  const gpu_array<int> over(16);
  run_op<phases_op>({.block = 32}, {over.data()});
  // Fresh: the phase before the first counts as over. Then one, two, … arrivals, two a phase.
  CHECK(over.to_host() == std::vector<int>{0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1});
}

TEST_CASE("a phase waits for the last byte that was announced") {
  if (!giwa_test::has_tensor_copies()) return;
  std::vector<int> from(bytes_op::parts * 16);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int>(i * i + 1);
  const gpu_array<int> from_gpu(from), to(from.size()), over(bytes_op::parts);
  run_op<bytes_op>({.block = 32}, {from_gpu.data(), to.data(), over.data()});
  const std::vector<int> seen = over.to_host();
  CHECK(std::vector<int>(seen.begin(), seen.end() - 1) == std::vector<int>(bytes_op::parts - 1, 0));
  CHECK(to.to_host() == from);
}

TEST_CASE("producers and consumers keep step through two barriers") {
  if (!giwa_test::has_tensor_copies()) return;
  const gpu_array<unsigned> wrong(1, 0);
  for (const unsigned sleep : {0u, 300u})
    run_op<laps_op>({.grid = 4, .block = 256}, {giwa_test::small_mode() ? 50 : 10000, sleep, wrong.data()});
  CHECK(wrong.to_host()[0] == 0);
}

TEST_CASE("blocks of a cluster arrive at each other's barriers") {
  if (!giwa_test::has_tensor_copies()) return;
  for (const int blocks : {1, 2, 4, 8}) {
    CAPTURE(blocks);
    const gpu_array<unsigned> wrong(1, 0);
    const gpu_array<int> progress(16, 0);
    run_op<remote_op>({.grid = 16, .block = 32, .cluster = blocks},
                      {giwa_test::small_mode() ? 50 : 5000, 200, progress.data(), wrong.data()});
    CHECK(wrong.to_host()[0] == 0);
  }
}
