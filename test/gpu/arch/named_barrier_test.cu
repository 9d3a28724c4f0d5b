// SPDX-License-Identifier: MIT
// Named barriers: groups of warps that synchronise apart, and producers that arrive without waiting for their consumers.
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

/// Eight groups of two warps, each with a barrier of its own (1 … 15, odd): in each lap a thread writes a number and reads
/// those of the other warp, so that a thread that is not waited for, or a barrier shared with others, shows.
struct groups_op {
  static constexpr int max_threads = 512, min_blocks = 1;
  using params = ::params;
  struct shared_storage {
    int number[2][512];
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int group = block.rank() / 64, first = group * 64, me = block.rank() % 64;
    const int laps = p.laps + group * 3;  // no group comes to the barrier as often as another
    for (int lap = 0; lap < laps; ++lap) {
      giwa_test::sleep_at_random(p.sleep);
      s.number[lap % 2][block.rank()] = lap * 64 + me;
      arch::barrier_sync(2 * group + 1, 64);
      const int other = (me + 32 + lap) % 64;
      if (s.number[lap % 2][first + other] != lap * 64 + other) atomicAdd(p.wrong, 1u);
    }
  }
};

/// Two warps produce for six, through a ring of two slots: a barrier for each slot full, and one for each empty. Who gives
/// up a slot does not wait.
struct ring_op {
  static constexpr int max_threads = 256, min_blocks = 1;
  static constexpr int full = 1, empty = 3;
  using params = ::params;
  struct shared_storage {
    int number[2][64];
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    if (block.rank() < 64) {
      for (int lap = 0; lap < p.laps; ++lap) {
        if (lap >= 2) arch::barrier_sync(empty + lap % 2, 256);
        giwa_test::sleep_at_random(p.sleep);
        s.number[lap % 2][block.rank()] = lap * 64 + block.rank();
        arch::barrier_arrive(full + lap % 2, 256);
      }
    } else {
      for (int lap = 0; lap < p.laps; ++lap) {
        arch::barrier_sync(full + lap % 2, 256);
        giwa_test::sleep_at_random(p.sleep);
        const int from = (block.rank() + lap) % 64;
        if (s.number[lap % 2][from] != lap * 64 + from) atomicAdd(p.wrong, 1u);
        if (lap + 2 < p.laps) arch::barrier_arrive(empty + lap % 2, 256);
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
