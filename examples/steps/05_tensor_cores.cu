// SPDX-License-Identifier: MIT
// Attention, step 5: both products on the tensor cores by mma.sync; fp16, summed in fp32.
//
//   nvcc -std=c++20 -O3 -arch=native -Iinclude examples/steps/05_tensor_cores.cu -o step && ./step
//
// A warp multiplies by itself: it has 16 of the block's 64 queries. The weights stay in registers, because the accumulator of
// one product has the layout of the left operand of the next.
#include "step.hpp"

#include <giwa/tile/mma_sm80.cuh>

struct tensor_cores {
  static constexpr int block_m = 64, block_n = 64, size = steps::head_size, warp_rows = 16;
  static constexpr int max_threads = 128, min_blocks = 1;
  using params = steps::problem<giwa::fp16>;
  // ldmatrix reads these tiles without bank conflicts.
  using tile = giwa::shared_tile<giwa::fp16, giwa::tile_shape<64, size>, giwa::swizzled<giwa::swizzle::bytes_128>>;
  struct shared_storage {
    tile q, k, v;
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = giwa::with_threads<max_threads>(plain_block);
    const giwa::int64 query = block.block_rank() * block_m, first = p.first_key(query);
    const int warp_row = block.warp() * warp_rows;
    giwa::load(block, p.q, giwa::index<2>{query, 0}, s.q);

    using scores_tile = giwa::warp_tile<warp_rows, block_n>;
    giwa::online_softmax<scores_tile::map> softmax;
    giwa::warp_tile<warp_rows, size> o;
    softmax.reset();
    o.fill(0);
    for (giwa::int64 key = first; key < first + p.tokens; key += block_n) {
      block.sync();  // all warps are done with the tiles before
      giwa::load(block, p.k, giwa::index<2>{key, 0}, s.k);
      giwa::load(block, p.v, giwa::index<2>{key, 0}, s.v);
      block.sync();
      scores_tile scores;
      scores.fill(0);
      giwa::multiply_add(block.lane(), scores, s.q, warp_row, giwa::transposed(s.k), 0);

      float factor[scores_tile::map::rows];
      softmax.update(block, scores, steps::scale_log2, factor);
      o.transform_rows(factor, [](float x, float f) { return x * f; });
      giwa::uint32 weights[scores_tile::registers / 2];  // two of fp16 in each
      giwa::to_operand<giwa::fp16>(scores, weights);
      giwa::multiply_add(block.lane(), o, weights, s.v, 0);
    }
    softmax.finish(block);
    float normalizer[scores_tile::map::rows];
    for (int r = 0; r < scores_tile::map::rows; ++r) normalizer[r] = softmax.normalizer(r);
    o.transform_rows(normalizer, [](float x, float f) { return x * f; });
    giwa::store(block.lane(), o, p.o, giwa::index<2>{query + warp_row, 0});
  }
};

int main() {
  return steps::run_on_gpu<giwa::fp16>("step 5, tensor cores, fp16", [](const auto& where, const auto& p) {
    return giwa::launch(where, {.grid = p.q.extent(0) / tensor_cores::block_m, .block = 128}, tensor_cores{}, p);
  });
}
