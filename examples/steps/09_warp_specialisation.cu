// SPDX-License-Identifier: MIT
// Attention, step 9: a producer warp loads, and two consumer warpgroups compute. fp16, Hopper.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/steps/09_warp_specialisation.cu -o step && ./step
//
// In step 8 one thread of the warpgroup that computes also starts the copies, so these wait for the softmax. Here they run
// ahead by themselves, K and V in a pipeline each, and one warpgroup multiplies while the other computes its softmax. Two
// warpgroups share every tile of K and V. giwa's own kernel has more of this: see step 10.
#include "step.hpp"

#include <giwa/arch/elect.cuh>
#include <giwa/device.hpp>
#include <giwa/tile/mma_sm90.cuh>
#include <giwa/tile/pipeline_sm90.cuh>
#include <giwa/tile/tile_map.hpp>

struct specialised {
  static constexpr int block_m = 128, block_n = 128, stages = 2, size = steps::head_size;
  static constexpr int max_threads = 384, min_blocks = 1;
  using layout = giwa::swizzled<giwa::swizzle::bytes_128>;
  template <int Rows>
  using tile_of = giwa::shared_tile<giwa::fp16, giwa::tile_shape<Rows, size>, layout>;
  using tile = tile_of<block_n>;  // of K or V
  using ring = giwa::pipeline<tile, stages, giwa::tensor_copies<>>;
  struct params {
    steps::problem<giwa::fp16> problem;
    giwa::tensor_map k, v;
  };
  struct shared_storage {
    tile_of<block_m> q;
    ring k, v;
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = giwa::with_threads<max_threads>(plain_block);
    const giwa::int64 query = block.block_rank() * block_m;
    s.k.initialize(block, /*consumer_warps=*/8);
    s.v.initialize(block, /*consumer_warps=*/8);
    giwa::load(block, p.problem.q, giwa::index<2>{query, 0}, s.q);
    giwa::arch::fence_async_proxy();
    block.sync();  // the last barrier of the whole block
    if (block.warp() == 0) {
      if (giwa::arch::elect_one()) produce(block, p, query, s);
      block.sync_warp();
    } else if (block.warp() >= 4) {
      consume(block, p, query, block.warp() / 4 - 1, s);
    }
  }

  /// One thread loads all tiles of the head, each as soon as its stage is free.
  template <class Block>
  GIWA_DEVICE static void produce(const Block& block, const params& p, giwa::int64 query, shared_storage& s) {
    const giwa::int64 first = p.problem.first_key(query);
    auto k = s.k.producer(block), v = s.v.producer(block);
    for (int n = 0; n < p.problem.tiles(block_n); ++n) {
      const giwa::index<2> origin{first + n * block_n, 0};
      k.put([&](tile& to, const auto& copies) { copies.load(p.k, origin, to); });
      v.put([&](tile& to, const auto& copies) { copies.load(p.v, origin, to); });
    }
  }

  /// A warpgroup computes 64 rows of the output.
  template <class Block>
  GIWA_DEVICE static void consume(const Block& block, const params& p, giwa::int64 query, int group,
                                  shared_storage& s) {
    using scores_tile = giwa::warpgroup_tile<block_n>;
    auto k = s.k.consumer(block), v = s.v.consumer(block);
    giwa::online_softmax<scores_tile::map> softmax;
    giwa::warpgroup_tile<size> o;
    softmax.reset();
    o.fill(0);
    for (int n = 0; n < p.problem.tiles(block_n); ++n) {
      scores_tile scores{};
      const tile& keys = k.wait();
      giwa::arch::fence_operand(scores.value);
      giwa::arch::wgmma_fence();
      giwa::multiply(scores, s.q, 64 * group, giwa::transposed(keys), /*accumulate=*/false);
      giwa::arch::wgmma_commit();
      giwa::arch::wgmma_wait<0>();
      giwa::arch::fence_operand(scores.value);
      k.release();  // the next K is loaded during the softmax

      float factor[scores_tile::map::rows];
      softmax.update(block, scores, steps::scale_log2, factor);
      o.transform_rows(factor, [](float x, float f) { return x * f; });
      giwa::uint32 weights[scores_tile::registers / 2];
      giwa::to_operand<giwa::fp16>(scores, weights);

      const tile& values = v.wait();
      giwa::arch::fence_operand(weights);
      giwa::arch::fence_operand(o.value);
      giwa::arch::wgmma_fence();
      giwa::multiply(o, weights, values, /*accumulate=*/true);
      giwa::arch::wgmma_commit();
      giwa::arch::wgmma_wait<0>();
      giwa::arch::fence_operand(o.value);
      v.release();
    }
    softmax.finish(block);
    float normalizer[scores_tile::map::rows];
    for (int r = 0; r < scores_tile::map::rows; ++r) normalizer[r] = softmax.normalizer(r);
    o.transform_rows(normalizer, [](float x, float f) { return x * f; });
    giwa::store(block.rank() % 128, o, p.problem.o, giwa::index<2>{query + 64 * group, 0});
  }
};

int main() {
  const auto attend = [](const auto& where, const auto& p) {
    const auto k = giwa::make_tile_map<specialised::tile>(p.k, "k"),
               v = giwa::make_tile_map<specialised::tile>(p.v, "v");
    if (!k.ok()) return k.state;
    if (!v.ok()) return v.state;
    return giwa::launch(where, {.grid = p.q.extent(0) / specialised::block_m, .block = 384}, specialised{},
                        {p, k.value, v.value});
  };
  return steps::run_on_gpu<giwa::fp16>("step 9, warp specialisation, fp16", attend, /*only_hopper=*/true);
}
