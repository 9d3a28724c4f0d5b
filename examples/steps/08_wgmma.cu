// SPDX-License-Identifier: MIT
// Attention, step 8: a warpgroup of four warps multiplies by wgmma, whose operands stay in shared memory. fp16, Hopper.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/steps/08_wgmma.cu -o step && ./step
//
// mma.sync reads both operands into registers first, for 16 rows of a warp. wgmma reads K and V where TMA has put them, once
// for 64 rows. It runs while the threads go on, so fences and waits say when registers may be read: docs/tile.md.
#include "step.hpp"

#include <giwa/device.hpp>
#include <giwa/tile/mma_sm90.cuh>
#include <giwa/tile/pipeline_sm90.cuh>
#include <giwa/tile/tile_map.hpp>

struct wgmma {
  static constexpr int block_m = 64, block_n = 128, size = steps::head_size;
  static constexpr int max_threads = 128, min_blocks = 2;
  using layout = giwa::swizzled<giwa::swizzle::bytes_128>;
  using key_tile = giwa::shared_tile<giwa::fp16, giwa::tile_shape<block_n, size>, layout>;
  struct params {
    steps::problem<giwa::fp16> problem;
    giwa::tensor_map k, v;
  };
  struct stage {
    key_tile k, v;
  };
  struct shared_storage {
    giwa::shared_tile<giwa::fp16, giwa::tile_shape<block_m, size>, layout> q;
    giwa::pipeline<stage, 2, giwa::tensor_copies<>> pipeline;
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = giwa::with_threads<max_threads>(plain_block);
    const giwa::int64 query = block.block_rank() * block_m, first = p.problem.first_key(query);
    s.pipeline.initialize(block, /*consumer_warps=*/4);
    giwa::load(block, p.problem.q, giwa::index<2>{query, 0}, s.q);
    giwa::arch::fence_async_proxy();  // wgmma sees what this thread wrote to shared memory
    block.sync();

    using scores_tile = giwa::warpgroup_tile<block_n>;
    giwa::online_softmax<scores_tile::map> softmax;
    giwa::warpgroup_tile<size> o;
    softmax.reset();
    o.fill(0);
    s.pipeline.stream(
        block, p.problem.tiles(block_n),
        [&](stage& to, const auto& copies, int step) {
          copies.load(p.k, giwa::index<2>{first + step * block_n, 0}, to.k);
          copies.load(p.v, giwa::index<2>{first + step * block_n, 0}, to.v);
        },
        [&](const stage& from, int) {
          scores_tile scores{};
          giwa::arch::fence_operand(scores.value);
          giwa::arch::wgmma_fence();
          giwa::multiply(scores, s.q, 0, giwa::transposed(from.k), /*accumulate=*/false);
          giwa::arch::wgmma_commit();
          giwa::arch::wgmma_wait<0>();
          giwa::arch::fence_operand(scores.value);

          float factor[scores_tile::map::rows];
          softmax.update(block, scores, steps::scale_log2, factor);
          o.transform_rows(factor, [](float x, float f) { return x * f; });
          giwa::uint32 weights[scores_tile::registers / 2];
          giwa::to_operand<giwa::fp16>(scores, weights);

          giwa::arch::fence_operand(weights);
          giwa::arch::fence_operand(o.value);
          giwa::arch::wgmma_fence();
          giwa::multiply(o, weights, from.v, /*accumulate=*/true);
          giwa::arch::wgmma_commit();
          giwa::arch::wgmma_wait<0>();
          giwa::arch::fence_operand(o.value);
        });
    softmax.finish(block);
    float normalizer[scores_tile::map::rows];
    for (int r = 0; r < scores_tile::map::rows; ++r) normalizer[r] = softmax.normalizer(r);
    o.transform_rows(normalizer, [](float x, float f) { return x * f; });
    giwa::store(block.rank(), o, p.problem.o, giwa::index<2>{query, 0});
  }
};

int main() {
  const auto attend = [](const auto& where, const auto& p) {
    const auto k = giwa::make_tile_map<wgmma::key_tile>(p.k, "k"), v = giwa::make_tile_map<wgmma::key_tile>(p.v, "v");
    if (!k.ok()) return k.state;
    if (!v.ok()) return v.state;
    return giwa::launch(where, {.grid = p.q.extent(0) / wgmma::block_m, .block = 128}, wgmma{}, {p, k.value, v.value});
  };
  return steps::run_on_gpu<giwa::fp16>("step 8, wgmma, fp16", attend, /*only_hopper=*/true);
}
