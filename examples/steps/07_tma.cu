// SPDX-License-Identifier: MIT
// Attention, step 7: TMA fills the pipeline: one thread asks for a whole tile, and the hardware copies it. fp16, Hopper.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/steps/07_tma.cu -o step && ./step
//
// In step 6 every thread computes addresses for its part of each copy. A tensor map describes the whole tensor instead, and
// lies in the parameters of the kernel. An mbarrier of each stage counts the bytes that arrive.
#include "step.hpp"

#include <giwa/device.hpp>
#include <giwa/tile/mma_sm80.cuh>
#include <giwa/tile/pipeline_sm90.cuh>
#include <giwa/tile/tile_map.hpp>

struct tma {
  static constexpr int block_m = 64, block_n = 64, size = steps::head_size, warp_rows = 16;
  static constexpr int max_threads = 128, min_blocks = 1;
  // The swizzle that TMA writes is the one that ldmatrix reads without bank conflicts.
  using tile = giwa::shared_tile<giwa::fp16, giwa::tile_shape<64, size>, giwa::swizzled<giwa::swizzle::bytes_128>>;
  struct params {
    steps::problem<giwa::fp16> problem;
    giwa::tensor_map k, v;
  };
  struct stage {
    tile k, v;
  };
  struct shared_storage {
    tile q;
    giwa::pipeline<stage, 3, giwa::tensor_copies<>> pipeline;
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = giwa::with_threads<max_threads>(plain_block);
    const giwa::int64 query = block.block_rank() * block_m, first = p.problem.first_key(query);
    const int warp_row = block.warp() * warp_rows;
    s.pipeline.initialize(block, /*consumer_warps=*/4);
    giwa::load(block, p.problem.q, giwa::index<2>{query, 0}, s.q);
    block.sync();  // q is complete, and the mbarriers are initialised

    using scores_tile = giwa::warp_tile<warp_rows, block_n>;
    giwa::online_softmax<scores_tile::map> softmax;
    giwa::warp_tile<warp_rows, size> o;
    softmax.reset();
    o.fill(0);
    s.pipeline.stream(
        block, p.problem.tiles(block_n),
        [&](stage& to, const auto& copies, int step) {  // the thread of rank 0 alone
          copies.load(p.k, giwa::index<2>{first + step * block_n, 0}, to.k);
          copies.load(p.v, giwa::index<2>{first + step * block_n, 0}, to.v);
        },
        [&](const stage& from, int) {
          scores_tile scores;
          scores.fill(0);
          giwa::multiply_add(block.lane(), scores, s.q, warp_row, giwa::transposed(from.k), 0);
          float factor[scores_tile::map::rows];
          softmax.update(block, scores, steps::scale_log2, factor);
          o.transform_rows(factor, [](float x, float f) { return x * f; });
          giwa::uint32 weights[scores_tile::registers / 2];
          giwa::to_operand<giwa::fp16>(scores, weights);
          giwa::multiply_add(block.lane(), o, weights, from.v, 0);
        });
    softmax.finish(block);
    float normalizer[scores_tile::map::rows];
    for (int r = 0; r < scores_tile::map::rows; ++r) normalizer[r] = softmax.normalizer(r);
    o.transform_rows(normalizer, [](float x, float f) { return x * f; });
    giwa::store(block.lane(), o, p.problem.o, giwa::index<2>{query + warp_row, 0});
  }
};

int main() {
  const auto attend = [](const auto& where, const auto& p) {
    const auto k = giwa::make_tile_map<tma::tile>(p.k, "k"), v = giwa::make_tile_map<tma::tile>(p.v, "v");
    if (!k.ok()) return k.state;
    if (!v.ok()) return v.state;
    return giwa::launch(where, {.grid = p.q.extent(0) / tma::block_m, .block = 128}, tma{}, {p, k.value, v.value});
  };
  return steps::run_on_gpu<giwa::fp16>("step 7, TMA, fp16", attend, /*only_hopper=*/true);
}
