// SPDX-License-Identifier: MIT
// Named barriers: groups of warps that synchronise separately, and producers that arrive without waiting for their consumers.
#include <giwa/arch/named_barrier.cuh>

#include "support/hopper.cuh"

using giwa_test::gpu_array, giwa_test::run_op;
namespace arch = giwa::arch;

namespace {

struct params {
  int laps;
  unsigned sleep;  // ns
  unsigned* wrong;
};

/// Eight groups of two warps, each with its own barrier (1, 3, ... 15). In each lap a thread writes a number and reads one of
/// the other warp. A thread that is not waited for, or a barrier shared with another group, gives a wrong number.
struct groups_op {
  static constexpr int max_threads = 512, min_blocks = 1;
  using params = ::params;
  struct shared_storage {
    int number[2][512];
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int group = block.rank() / 64, first = group * 64, me = block.rank() % 64;
    const int laps = p.laps + group * 3;  // each group arrives a different number of times
    for (int lap = 0; lap < laps; ++lap) {
      giwa_test::sleep_at_random(p.sleep);
      s.number[lap % 2][block.rank()] = lap * 64 + me;
      arch::barrier_sync(2 * group + 1, 64);
      const int other = (me + 32 + lap) % 64;
      if (s.number[lap % 2][first + other] != lap * 64 + other) atomicAdd(p.wrong, 1u);
    }
  }
};

/// Two producer warps and six consumer warps share a ring of two slots. Each slot has a barrier "full" and a barrier "empty".
/// A thread that fills or frees a slot arrives at its barrier and does not wait.
struct ring_op {
  static constexpr int max_threads = 256, min_blocks = 1;
  enum class named_barrier : int { full = 1, empty = 3 };  // each of two
  GIWA_DEVICE static named_barrier of(named_barrier first, int slot) {
    return static_cast<named_barrier>(static_cast<int>(first) + slot);
  }
  using params = ::params;
  struct shared_storage {
    int number[2][64];
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    if (block.rank() < 64) {
      for (int lap = 0; lap < p.laps; ++lap) {
        if (lap >= 2) arch::barrier_sync(of(named_barrier::empty, lap % 2), 256);
        giwa_test::sleep_at_random(p.sleep);
        s.number[lap % 2][block.rank()] = lap * 64 + block.rank();
        arch::barrier_arrive(of(named_barrier::full, lap % 2), 256);
      }
    } else {
      for (int lap = 0; lap < p.laps; ++lap) {
        arch::barrier_sync(of(named_barrier::full, lap % 2), 256);
        giwa_test::sleep_at_random(p.sleep);
        const int from = (block.rank() + lap) % 64;
        if (s.number[lap % 2][from] != lap * 64 + from) atomicAdd(p.wrong, 1u);
        if (lap + 2 < p.laps) arch::barrier_arrive(of(named_barrier::empty, lap % 2), 256);
      }
    }
  }
};

}  // namespace

TEMPLATE_TEST_CASE("named barriers keep their groups in step", "", groups_op, ring_op) {
  const gpu_array<unsigned> wrong(1, 0);
  for (const unsigned sleep : {0u, 400u})
    run_op<TestType>({.grid = 4, .block = TestType::max_threads},
                     {giwa_test::small_mode() ? 40 : 5000, sleep, wrong.data()});
  CHECK(wrong.to_host()[0] == 0);
}
