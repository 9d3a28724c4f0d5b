// SPDX-License-Identifier: MIT
// Clusters: ranks, the barrier whole and in halves, and numbers written to, sent to and read from the memory of other blocks.
#include <giwa/arch/cluster.cuh>
#include <giwa/arch/mbarrier.cuh>

#include <cstring>

#include "support/hopper.cuh"

using giwa_test::gpu_array, giwa_test::run_op;
namespace arch = giwa::arch;

namespace {

/// 8 bytes that are no number.
struct two_words {
  unsigned low, high;
};

struct ranks_op {
  static constexpr int max_threads = 32, min_blocks = 1;
  struct params {
    int* ranks;  // (blocks, 2): rank and size
  };
  using shared_storage = giwa::no_shared_storage;
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    if (block.rank() != 0) return;
    p.ranks[2 * block.block_rank()] = arch::cluster_rank();
    p.ranks[2 * block.block_rank() + 1] = arch::cluster_size();
  }
};

/// In each lap every thread writes a number to the memory of every block of its cluster, at its own offset. After the barrier
/// it checks the numbers of the others in its own block, and reads and checks those in the other blocks.
template <class T>
struct exchange_op {
  static constexpr int max_threads = 64, min_blocks = 1;
  struct params {
    int laps;
    unsigned sleep;  // ns
    unsigned* wrong;
  };
  struct shared_storage {
    T number[2][8][64];  // (lap, written by, thread)
  };
  GIWA_DEVICE static T make(int lap, int from, int to, int thread) {
    const unsigned low = static_cast<unsigned>(((lap * 8 + from) * 8 + to) * 64 + thread);
    if constexpr (sizeof(T) == 8)
      return T{low, ~low};
    else
      return static_cast<T>(low);
  }
  GIWA_DEVICE static bool same(const T& a, const T& b) {
    if constexpr (sizeof(T) == 8)
      return a.low == b.low && a.high == b.high;
    else
      return a == b;
  }
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int rank = arch::cluster_rank(), blocks = arch::cluster_size(), thread = block.rank();
    arch::cluster_arrive_relaxed();
    arch::cluster_wait();  // all blocks run
    for (int lap = 0; lap < p.laps; ++lap) {
      giwa_test::sleep_at_random(p.sleep);
      auto& numbers = s.number[lap % 2];
      for (int to = 0; to < blocks; ++to)
        arch::cluster_store(arch::cluster_address(arch::shared_address(&numbers[rank][thread]), to),
                            make(lap, rank, to, thread));
      if (lap % 3 == 0) {
        arch::cluster_arrive();
        giwa_test::sleep_at_random(p.sleep);
        arch::cluster_wait();
      } else {
        arch::cluster_sync();
      }
      const int other = (thread * 29 + lap) % 64;
      bool right = true;
      for (int from = 0; from < blocks; ++from) {
        right = right && same(numbers[from][other], make(lap, from, rank, other));
        const auto theirs = arch::cluster_address(arch::shared_address(&numbers[rank][other]), from);
        right = right && same(arch::cluster_load<T>(theirs), make(lap, rank, from, other));
      }
      if (!right) atomicAdd(p.wrong, 1u);
    }
    arch::cluster_sync();  // nobody leaves while others read
  }
};

/// Each block sends its rank, with a count of its 8 bytes, to the block before it in its cluster.
struct send_op {
  static constexpr int max_threads = 32, min_blocks = 1;
  struct params {
    two_words* received;  // (blocks)
  };
  struct shared_storage {
    two_words word;
    arch::mbarrier arrived;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int rank = arch::cluster_rank(), blocks = arch::cluster_size(), before = (rank + blocks - 1) % blocks;
    if (block.rank() == 0) {
      s.arrived.initialize(1);
      arch::mbarriers_initialized();
    }
    arch::cluster_sync();
    if (block.rank() == 0) {
      s.arrived.arrive_and_expect(sizeof(two_words));
      const two_words mine{static_cast<unsigned>(rank), static_cast<unsigned>(rank) + 200};
      arch::cluster_store_async(arch::cluster_address(arch::shared_address(&s.word), before), mine,
                                arch::cluster_address(s.arrived.address(), before));
    }
    s.arrived.wait(0);
    if (block.rank() == 0) p.received[block.block_rank()] = s.word;
    arch::cluster_sync();  // nobody returns while another writes here
  }
};

}  // namespace

TEST_CASE("a block knows its rank in its cluster") {
  if (!giwa_test::has_tensor_copies()) return;
  for (const int blocks : {1, 2, 4, 8}) {
    const gpu_array<int> ranks(64);
    run_op<ranks_op>({.grid = 32, .block = 32, .cluster = blocks}, {ranks.data()});
    std::vector<int> expected;
    for (int i = 0; i < 32; ++i) expected.insert(expected.end(), {i % blocks, blocks});
    CAPTURE(blocks);
    CHECK(ranks.to_host() == expected);
  }
}

TEMPLATE_TEST_CASE("blocks of a cluster write to and read from each other's memory", "", (exchange_op<unsigned>),
                   (exchange_op<two_words>)) {
  if (!giwa_test::has_tensor_copies()) return;
  for (const int blocks : {1, 2, 4, 8})
    for (const unsigned sleep : {0u, 300u}) {
      CAPTURE(blocks, sleep);
      const gpu_array<unsigned> wrong(1, 0);
      run_op<TestType>({.grid = 16, .block = 64, .cluster = blocks},
                       {giwa_test::small_mode() ? 20 : 2000, sleep, wrong.data()});
      CHECK(wrong.to_host()[0] == 0);
    }
}

TEST_CASE("a block sends a word to another, whose barrier counts its bytes") {
  if (!giwa_test::has_tensor_copies()) return;
  for (const int blocks : {2, 4, 8}) {
    CAPTURE(blocks);
    const gpu_array<two_words> received(24);
    run_op<send_op>({.grid = 24, .block = 32, .cluster = blocks}, {received.data()});
    const std::vector<two_words> got = received.to_host();
    for (unsigned b = 0; b < 24; ++b) {
      const auto of = static_cast<unsigned>(blocks), next = (b % of + 1) % of;
      CHECK((got[b].low == next && got[b].high == next + 200));
    }
  }
}
