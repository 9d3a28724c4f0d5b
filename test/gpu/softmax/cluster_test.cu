// SPDX-License-Identifier: MIT
// The instructions of clusters: ranks, the barrier, and memory of other blocks read and written both ways.
#include <giwa/arch/cluster.cuh>
#include <giwa/arch/mbarrier.cuh>
#include <giwa/grid.cuh>

#include "support/catch.hpp"
#include "support/gpu.cuh"

namespace {

using namespace giwa_test;
namespace arch = giwa::arch;

// Each block writes its rank plus 100 to the next block, reads what the previous one has written to itself and what the
// next one holds, and sends 8 bytes with a count to the one before.
template <class = void>
__global__ void __launch_bounds__(32) around(int* out) {  // (blocks, 5)
  __shared__ int slot;
  __shared__ alignas(8) int pair[2];
  __shared__ arch::mbarrier arrived;
  const int rank = arch::cluster_rank(), size = arch::cluster_size();
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  if (threadIdx.x == 0) {
    arrived.initialize(1);
    arch::mbarriers_initialized();
  }
  arch::cluster_sync();
  if (threadIdx.x == 0) {
    arch::cluster_store(arch::cluster_address(arch::shared_address(&slot), next), rank + 100);
    arrived.arrive_and_expect(8);
    const int mine[2] = {rank, rank + 200};
    giwa::uint64 word;
    __builtin_memcpy(&word, mine, 8);
    arch::cluster_store_async(arch::cluster_address(arch::shared_address(pair), before), word,
                              arch::cluster_address(arrived.address(), before));
  }
  arch::cluster_sync();
  arrived.wait(0);
  if (threadIdx.x == 0) {
    int* const mine = out + 5 * blockIdx.x;
    mine[0] = rank;
    mine[1] = slot;
    mine[2] = arch::cluster_load<int>(arch::cluster_address(arch::shared_address(&slot), next));
    mine[3] = pair[0];
    mine[4] = pair[1];
  }
  arch::cluster_sync();  // nobody returns while another reads here
}

}  // namespace

TEST_CASE("blocks of a cluster reach each other's shared memory") {
  if (capability() < 90) return;
  const giwa::stream s = new_stream();
  for (const int size : {2, 4, 8}) {
    const int blocks = 3 * size;
    const gpu_array<int> out(static_cast<std::size_t>(5 * blocks));
    REQUIRE(giwa::launch(s, {.grid = blocks, .block = 32, .cluster = size}, around<>, out.data()).ok());
    REQUIRE(giwa::synchronize(s).ok());
    const std::vector<int> got = out.to_host();
    for (int b = 0; b < blocks; ++b) {
      const int* const mine = got.data() + 5 * b;
      const int rank = b % size, next = (rank + 1) % size, before = (rank + size - 1) % size;
      CAPTURE(size, b);
      CHECK(mine[0] == rank);
      CHECK(mine[1] == before + 100);
      CHECK(mine[2] == rank + 100);
      CHECK(mine[3] == next);
      CHECK(mine[4] == next + 200);
    }
  }
}
