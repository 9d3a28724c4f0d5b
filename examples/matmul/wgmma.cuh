// SPDX-License-Identifier: MIT
// Matrix product, step 5: wgmma on tiles that TMA loads; one thread loads for two warpgroups that multiply. sm_90a.
#pragma once

#include "mma.cuh"

#include <giwa/arch/cluster.cuh>
#include <giwa/arch/elect.cuh>
#include <giwa/arch/named_barrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/device.hpp>
#include <giwa/tile/mma_sm90.cuh>
#include <giwa/tile/pipeline_sm90.cuh>
#include <giwa/tile/tile_map.hpp>

#include <algorithm>

namespace matmul {

/// Runs the roles of an op: one thread of the first warpgroup is the producer, two warpgroups are consumers.
template <class Op, class Block, class Pipeline, class Load, class Multiply>
GIWA_DEVICE void share_out(Block block, Pipeline& pipeline, const Load& load, const Multiply& multiply) {
  pipeline.initialize(block, /*consumer_warps=*/8);
  giwa::arch::cluster_sync();
  if (block.warp() < 4) {
    giwa::arch::release_registers<Op::loader_registers>();
    if (block.warp() == 0 && giwa::arch::elect_one()) load();
    block.sync_warp();
  } else {
    giwa::arch::claim_registers<Op::multiplier_registers>();
    multiply();
  }
  giwa::arch::cluster_sync();  // no block exits while the other may still signal it
}

/// Calls visit(first row, first column) for each tile of c of this block. The tiles of the blocks of a cluster are vertical
/// neighbours.
template <class Op, class Block, class Visit>
GIWA_DEVICE void for_each_tile(Block block, const cut& tiles, const Visit& visit) {
  const int cluster = static_cast<int>(block.block_rank()) / Op::blocks, rank = giwa::arch::cluster_rank();
  for (int t = cluster; t < tiles.order.count(); t += static_cast<int>(block.block_count()) / Op::blocks) {
    const auto [row, column] = tiles.order[t];
    visit((row * Op::blocks + rank) * Op::rows, column * Op::columns);
  }
}

/// Computes c = epilogue(a b) for 16-bit elements. A cluster of two blocks computes 256 x 256 of c, each block 128 rows of it.
/// The blocks share the tiles of b: each loads one half for both.
template <class T, class Epilogue>
struct wgmma_op {
  // 128 x 256 x 64 with 4 stages fills shared memory. The products of a stage take 1024 cycles of the tensor cores, in which
  // 32 KB are loaded from the L2 cache (48 KB without the cluster).
  static constexpr int rows = 128, columns = 256, depth = 64, stages = 4, blocks = 2;
  static constexpr int max_threads = 384, min_blocks = 1;
  static constexpr int loader_registers = 40, multiplier_registers = 232;

  using layout = giwa::swizzled<giwa::swizzle::bytes_128>;
  using tile_a = giwa::shared_tile<T, giwa::tile_shape<rows, depth>, layout>;
  using tile_b = giwa::shared_tile<T, giwa::tile_shape<depth, columns>, layout>;
  using tile_c = giwa::shared_tile<T, giwa::tile_shape<64, 64>, layout>;  // one store of a warpgroup

  struct stage {
    tile_a a;
    tile_b b;
  };
  struct shared_storage {
    giwa::pipeline<stage, stages, giwa::tensor_copies<blocks>> pipeline;
    tile_c c[2][2];  // (warpgroup, buffer)
  };
  struct params {
    giwa::tensor_map a, b, c;  // (m, k), (k, n), (m, n)
    Epilogue epilogue;
    int m, n;
    cut tiles;  // each for a cluster
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    share_out<wgmma_op>(
        block, s.pipeline, [&] { load(block, p, s); }, [&] { multiply(block, p, s); });
  }

 private:
  template <class Block>
  GIWA_DEVICE static void load(Block block, const params& p, shared_storage& s) {
    auto in = s.pipeline.producer(block);
    for_each_tile<wgmma_op>(block, p.tiles, [&](int row, int column) {
      for (int k = 0; k < p.tiles.steps; ++k)
        in.put([&](stage& to, const auto& copies) {
          copies.load(p.a, giwa::index<2>{row, k * depth}, to.a);
          copies.multicast(p.b, giwa::index<2>{k * depth, column}, to.b, giwa::arch::cluster_rank());
        });
    });
  }

  template <class Block>
  GIWA_DEVICE static void multiply(Block block, const params& p, shared_storage& s) {
    const int group = block.warp() / 4 - 1, thread = block.rank() % 128;
    auto out = s.pipeline.consumer(block);
    for_each_tile<wgmma_op>(block, p.tiles, [&](int row, int column) {
      giwa::warpgroup_tile<columns> sum{};  // ptxas of CUDA 12.4 serialises products into registers without a value
      for (int k = 0; k < p.tiles.steps; ++k) {
        const stage& tile = out.wait();
        giwa::arch::fence_operand(sum.value);
        giwa::arch::wgmma_fence();
        giwa::multiply(sum, tile.a, 64 * group, tile.b, k > 0);
        giwa::arch::wgmma_commit();
        if (k > 0) {
          giwa::arch::wgmma_wait<1>();  // for the previous product
          out.release();
        }
      }
      giwa::arch::wgmma_wait<0>();
      giwa::arch::fence_operand(sum.value);
      out.release();

      row += 64 * group;
      sum.for_each(thread, [&](float& x, int r, int c) {
        if (row + r < p.m && column + c < p.n) x = p.epilogue(x, row + r, column + c);
      });
      GIWA_UNROLL
      for (int part = 0; part < columns; part += 64) {
        tile_c& c = s.c[group][part / 64 % 2];
        if (thread == 0) giwa::arch::wait_stores_read<1>();  // the store that read this tile is done
        giwa::arch::barrier_sync(1 + group, 128);
        giwa::store(thread, sum, part, c);
        giwa::arch::fence_async_proxy();
        giwa::arch::barrier_sync(1 + group, 128);
        if (thread == 0) {
          giwa::store(c, p.c, giwa::index<2>{row, column + part});
          giwa::arch::commit_stores();
        }
      }
    });
    if (thread == 0) giwa::arch::wait_stores<0>();
  }
};

/// The largest size of a matrix for which the end of every tile fits in a TMA coordinate, an int.
inline constexpr int64 largest_of_wgmma = std::numeric_limits<int>::max() - 512;

/// Launches such an op for c (m, n) = a (m, k) b (k, n) with as many blocks as run at once and the params to_params(tiles).
template <class Op, class ToParams>
giwa::status launch_clusters(cudaStream_t stream, int64 m, int64 n, int64 k, const ToParams& to_params) {
  giwa::result<cut> tiles = cut_into(m, n, k, Op::rows * Op::blocks, Op::columns, Op::depth);
  if (!tiles.ok()) return tiles.state;
  tiles.value.order.band = 8;  // 4, 8 and 16 are within 1 % of each other, H200, 2026-11-21
  const giwa::result<int64> at_once = giwa::blocks_at_once<Op>(Op::blocks);
  if (!at_once.ok()) return at_once.state;
  const int64 grid = std::min<int64>(int64{tiles.value.order.count()} * Op::blocks, at_once.value);
  return giwa::launch(stream, {.grid = grid, .block = Op::max_threads, .cluster = Op::blocks}, Op{},
                      to_params(tiles.value));
}

/// Computes c = epilogue(a b), summed in fp32, for fp16 or bf16. Uses wgmma if the program and the GPU have it and TMA can
/// address the matrices (addresses and strides are multiples of 16 bytes, rows are contiguous, rows of c are a multiple of
/// 16 bytes long), otherwise step 4. Asynchronous on `stream`.
template <class T, class Epilogue = identity>
giwa::status wgmma(cudaStream_t stream, const giwa::tensor_view<const T, 2>& a, const giwa::tensor_view<const T, 2>& b,
                   const giwa::tensor_view<T, 2>& c, const Epilogue& epilogue = {}) {
  using op = wgmma_op<T, Epilogue>;
  if (const giwa::status s = check(a, b, c); !s.ok()) return s;
  if (c.size() == 0) return {};
  const giwa::result<giwa::device_code> code = giwa::code_for_current_device();
  if (!code.ok()) return code.state;
  const bool small = std::max({c.extent(0), c.extent(1), a.extent(1)}) <= largest_of_wgmma;
  if (!code.value.architecture_specific || a.size() == 0 || !small || !giwa::check_tensor_map(a, "a").ok() ||
      !giwa::check_tensor_map(b, "b").ok() || !giwa::check_store_map(c, "c").ok())
    return mma(stream, a, b, c, epilogue);

  const auto map_a = giwa::make_tile_map<typename op::tile_a>(a, "a");
  const auto map_b = giwa::make_tile_map<typename op::tile_b>(b, "b");
  const auto map_c = giwa::make_store_map<typename op::tile_c>(c, "c");
  if (!map_a.ok()) return map_a.state;
  if (!map_b.ok()) return map_b.state;
  if (!map_c.ok()) return map_c.state;
  return launch_clusters<op>(stream, c.extent(0), c.extent(1), a.extent(1), [&](const cut& tiles) {
    return typename op::params{
        map_a.value, map_b.value, map_c.value, epilogue, static_cast<int>(c.extent(0)), static_cast<int>(c.extent(1)),
        tiles};
  });
}

}  // namespace matmul
