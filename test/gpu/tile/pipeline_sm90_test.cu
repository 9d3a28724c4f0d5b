// SPDX-License-Identifier: MIT
// The pipeline that TMA fills: many laps of its ring, alone and in clusters with multicast, each role held up at random.
#include <giwa/arch/cluster.cuh>
#include <giwa/arch/elect.cuh>
#include <giwa/tile/pipeline_sm90.cuh>
#include <giwa/tile/tile_map.hpp>

#include "support/hopper.cuh"

using giwa::int64, giwa::swizzle;
using giwa_test::gpu_array, giwa_test::run_op;
namespace arch = giwa::arch;

namespace {

constexpr int view_rows = 500, view_columns = 96;  // the number at (r, c) is r view_columns + c, and 0 outside

/// One warp loads and `Warps` consume. Each stage has a tile of the block's own and one that the blocks of the cluster load
/// together. A consumer keeps `Held` stages before it gives the oldest back.
template <int Depth, int Warps, int Blocks, int Held>
struct ring_op {
  static constexpr int max_threads = 32 * (1 + Warps), min_blocks = 1, blocks = Blocks;
  using layout = giwa::swizzled<swizzle::bytes_128>;
  struct stage {
    giwa::shared_tile<float, giwa::tile_shape<8, 64>, layout> own;            // two boxes
    giwa::shared_tile<float, giwa::tile_shape<16, 32 * Blocks>, layout> all;  // one box for each block
  };
  struct shared_storage {
    giwa::pipeline<stage, Depth, giwa::tensor_copies<Blocks>> pipeline;
  };
  struct params {
    giwa::tensor_map own, all;
    int laps;
    unsigned sleep;  // ns
    int* right;      // (blocks): how many laps brought their warps what they should, of all warps together
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    s.pipeline.initialize(block, Warps);
    arch::cluster_sync();
    if (block.warp() == 0) {
      if (arch::elect_one()) load(block, p, s);
      block.sync_warp();
    } else {
      consume(block, p, s);
    }
    arch::cluster_sync();
  }

 private:
  // Where the tiles of a lap come from: partly before the view, in it, and past its end.
  GIWA_DEVICE static giwa::index<2> origin(int lap, int of) {
    const unsigned mixed = static_cast<unsigned>(lap * 2 + of) * 0x9e3779b9u;
    return {static_cast<int64>(mixed >> 8) % (view_rows + 20) - 16, static_cast<int64>(mixed % 5) * 32 - 32};
  }
  GIWA_DEVICE static float expected(const giwa::index<2>& at) {
    const bool inside = at[0] >= 0 && at[0] < view_rows && at[1] >= 0 && at[1] < view_columns;
    return inside ? static_cast<float>(at[0] * view_columns + at[1]) : 0.0f;
  }
  template <class Tile>
  GIWA_DEVICE static bool holds(const Tile& tile, const giwa::index<2>& from, int lane) {
    bool right = true;
    for (int i = lane; i < Tile::rows * Tile::columns; i += 32) {
      const int row = i / Tile::columns, column = i % Tile::columns;
      right = right && tile(row, column) == expected({from[0] + row, from[1] + column});
    }
    return right;
  }

  template <class Block>
  GIWA_DEVICE static void load(Block block, const params& p, shared_storage& s) {
    const int rank = arch::cluster_rank(), cluster = static_cast<int>(block.block_rank()) / Blocks;
    auto in = s.pipeline.producer(block);
    for (int lap = 0; lap < p.laps; ++lap) {
      giwa_test::sleep_at_random(p.sleep);
      in.put([&](stage& to, const auto& copies) {
        copies.load(p.own, origin(lap, 1000 + static_cast<int>(block.block_rank())), to.own);
        giwa_test::sleep_at_random(p.sleep);
        copies.multicast(p.all, origin(lap, cluster), to.all, rank);
      });
    }
  }
  template <class Block>
  GIWA_DEVICE static void consume(Block block, const params& p, shared_storage& s) {
    const int cluster = static_cast<int>(block.block_rank()) / Blocks;
    auto out = s.pipeline.consumer(block);
    int right_laps = 0;
    const stage* held[Held];
    for (int lap = 0; lap < p.laps + Held - 1; ++lap) {
      if (lap < p.laps) {
        held[Held - 1] = &out.wait();
        giwa_test::sleep_at_random(p.sleep);
      }
      if (const int oldest = lap - Held + 1; oldest >= 0) {
        const stage& from = *held[0];
        const bool right = holds(from.own, origin(oldest, 1000 + static_cast<int>(block.block_rank())), block.lane()) &&
                           holds(from.all, origin(oldest, cluster), block.lane());
        giwa_test::sleep_at_random(p.sleep);
        right_laps += block.all(right) ? 1 : 0;
        out.release();
      }
      GIWA_UNROLL
      for (int i = 1; i < Held; ++i) held[i - 1] = held[i];
    }
    if (block.lane() == 0) atomicAdd(p.right + block.block_rank(), right_laps);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("a pipeline hands each tile to each consumer, once and whole", "", (ring_op<2, 1, 1, 1>),
                   (ring_op<3, 4, 1, 2>), (ring_op<4, 8, 1, 3>), (ring_op<2, 3, 2, 1>), (ring_op<4, 4, 2, 2>),
                   (ring_op<3, 2, 4, 1>)) {
  using op = TestType;
  if (!giwa_test::has_tensor_copies()) return;
  std::vector<float> memory(static_cast<std::size_t>(view_rows * view_columns));
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const gpu_array<float> memory_gpu(memory);
  const giwa::tensor_view<const float, 2> view{memory_gpu.data(), {view_rows, view_columns}};
  const auto own = giwa::throw_if_failed(giwa::make_tile_map<decltype(op::stage::own)>(view));
  const auto all = giwa::throw_if_failed(giwa::make_tile_map<decltype(op::stage::all)>(view));
  constexpr int blocks = 8;
  for (const unsigned sleep : {0u, 100u, 2000u}) {
    const int laps = giwa_test::small_mode() ? 23 : sleep > 1000 ? 3000 : 10007;  // more than Depth, and no multiple
    const gpu_array<int> right(blocks, 0);
    CAPTURE(sleep);
    run_op<op>({.grid = blocks, .block = op::max_threads, .cluster = op::blocks},
               {own, all, laps, sleep, right.data()});
    CHECK(right.to_host() == std::vector<int>(blocks, laps * (op::max_threads / 32 - 1)));
  }
}

namespace {

/// Lane 0 of a consumer warp reads a stage and releases it while the other lanes have not read it yet.
struct late_lanes_op {
  static constexpr int max_threads = 64, min_blocks = 1, rows = 8;
  using tile = giwa::shared_tile<float, giwa::tile_shape<rows, 32>, giwa::swizzled<swizzle::bytes_128>>;
  struct shared_storage {
    giwa::pipeline<tile, 2, giwa::tensor_copies<>> pipeline;
    int lap;  // that lane 0 has read
  };
  struct params {
    giwa::tensor_map in;  // element (r, c) is 32 r + c
    int laps;
    int* wrong;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    s.pipeline.initialize(block, /*consumer_warps=*/1);
    if (block.rank() == 0) s.lap = -1;
    block.sync();
    if (block.warp() == 0) {
      if (!arch::elect_one()) return;
      auto in = s.pipeline.producer(block);
      for (int lap = 0; lap < p.laps; ++lap)
        in.put([&](tile& to, const auto& copies) { copies.load(p.in, giwa::index<2>{rows * lap, 0}, to); });
      return;
    }
    auto out = s.pipeline.consumer(block);
    volatile int& read = s.lap;
    int wrong = 0;
    for (int lap = 0; lap < p.laps; ++lap) {
      const tile& from = out.wait();
      const auto look = [&] {
        for (int r = 0; r < rows; ++r)
          wrong += from(r, block.lane()) != static_cast<float>(32 * (rows * lap + r) + block.lane());
      };
      if (block.lane() == 0) {
        look();
        read = lap;
        out.release();
      } else {
        while (read < lap) {
        }
        giwa_test::spin(3000);
        look();
        out.release();
      }
    }
    if (wrong != 0) atomicAdd(p.wrong, wrong);
  }
};

}  // namespace

TEST_CASE("a stage is free when all lanes of a warp have released it") {
  if (!giwa_test::has_tensor_copies()) return;
  constexpr int laps = 50;
  std::vector<float> memory(laps * late_lanes_op::rows * 32);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const gpu_array<float> in(memory);
  const giwa::tensor_view<const float, 2> view{in.data(), {laps * late_lanes_op::rows, 32}};
  const auto map = giwa::throw_if_failed(giwa::make_tile_map<late_lanes_op::tile>(view));
  const gpu_array<int> wrong(1, 0);
  run_op<late_lanes_op>({.grid = 1, .block = late_lanes_op::max_threads}, {map, laps, wrong.data()});
  CHECK(wrong.to_host()[0] == 0);
}

namespace {

/// The sum of each of 64 rows, through a pipeline of any copies: one body, whatever fills the stages.
template <class Copies, class Source>
struct row_sums {
  static constexpr int max_threads = 64, min_blocks = 1;
  using tile = giwa::shared_tile<float, giwa::tile_shape<64, 32>, giwa::swizzled<swizzle::bytes_128>>;
  struct shared_storage {
    giwa::pipeline<tile, 3, Copies> pipeline;
  };
  struct params {
    Source in;   // (rows, columns)
    float* out;  // (blocks, 64)
    int steps;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    s.pipeline.initialize(block, /*consumer_warps=*/2);
    block.sync();
    float sum = 0;
    s.pipeline.stream(
        block, p.steps,
        [&](tile& to, const auto& copies, int step) {
          copies.load(p.in, giwa::index<2>{64 * block.block_rank(), 32 * step}, to);
        },
        [&](const tile& from, int) {
          for (int c = 0; c < 32; ++c) sum += from(block.rank(), c);
        });
    p.out[64 * block.block_rank() + block.rank()] = sum;
  }
};

}  // namespace

TEST_CASE("the same kernel runs on every kind of copies") {
  if (!giwa_test::has_tensor_copies()) return;
  constexpr int rows = 200, columns = 1000, blocks = 4, steps = 32;  // ragged on both sides
  std::vector<float> memory(rows * columns), expected(64 * blocks, 0.0f);
  for (int i = 0; i < rows * columns; ++i) {
    memory[static_cast<std::size_t>(i)] = static_cast<float>(i * 7919 % 1024 - 512);  // sums below 2^24 are exact
    expected[static_cast<std::size_t>(i / columns)] += memory[static_cast<std::size_t>(i)];
  }
  const gpu_array<float> in(memory);
  const giwa::tensor_view<const float, 2> view{in.data(), {rows, columns}};
  const gpu_array<float> plain(64 * blocks), async(64 * blocks), tensor(64 * blocks);
  using view_type = giwa::tensor_view<const float, 2>;
  using by_tma = row_sums<giwa::tensor_copies<>, giwa::tensor_map>;
  run_op<row_sums<giwa::plain_copies, view_type>>({.grid = blocks, .block = 64}, {view, plain.data(), steps});
  run_op<row_sums<giwa::async_copies, view_type>>({.grid = blocks, .block = 64}, {view, async.data(), steps});
  const auto map = giwa::throw_if_failed(giwa::make_tile_map<by_tma::tile>(view));
  run_op<by_tma>({.grid = blocks, .block = 64}, {map, tensor.data(), steps});
  CHECK(plain.to_host() == expected);
  CHECK(async.to_host() == expected);
  CHECK(tensor.to_host() == expected);
}
