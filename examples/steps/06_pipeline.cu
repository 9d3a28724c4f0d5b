// SPDX-License-Identifier: MIT
// Attention, step 6: a pipeline of asynchronous copies (cp.async) loads the next tiles while these are used. fp16.
//
//   nvcc -std=c++20 -O3 -arch=native -Iinclude examples/steps/06_pipeline.cu -o step && ./step
//
// In step 5 the tensor cores wait for each copy. Here two more stages are in flight while one is used, and the copies take no
// registers. pipeline.stream() is the loop; the products and the softmax are those of step 5.
#include "step.hpp"

#include <giwa/tile/mma_sm80.cuh>

struct pipelined {
  static constexpr int block_m = 64, block_n = 64, size = steps::head_size, warp_rows = 16;
  static constexpr int max_threads = 128, min_blocks = 1;
  using params = steps::problem<giwa::fp16>;
  using tile = giwa::shared_tile<giwa::fp16, giwa::tile_shape<64, size>, giwa::swizzled<giwa::swizzle::bytes_128>>;
  struct stage {
    tile k, v;
  };
  struct shared_storage {
    tile q;
    giwa::pipeline<stage, 3, giwa::async_copies> pipeline;
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = giwa::with_threads<max_threads>(plain_block);
    const giwa::int64 query = block.block_rank() * block_m, first = p.first_key(query);
    const int warp_row = block.warp() * warp_rows;
    giwa::load(block, p.q, giwa::index<2>{query, 0}, s.q);  // complete after the first barrier of the pipeline

    using scores_tile = giwa::warp_tile<warp_rows, block_n>;
    giwa::online_softmax<scores_tile::map> softmax;
    giwa::warp_tile<warp_rows, size> o;
    softmax.reset();
    o.fill(0);
    s.pipeline.stream(
        block, p.tiles(block_n),
        [&](stage& to, const auto& copies, int step) {
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
    giwa::store(block.lane(), o, p.o, giwa::index<2>{query + warp_row, 0});
  }
};

int main() {
  return steps::run_on_gpu<giwa::fp16>("step 6, pipeline, fp16", [](const auto& where, const auto& p) {
    return giwa::launch(where, {.grid = p.q.extent(0) / pipelined::block_m, .block = 128}, pipelined{}, p);
  });
}
