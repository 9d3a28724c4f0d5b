// SPDX-License-Identifier: MIT
// Attention, step 4: one pass over the keys by the online softmax, which is FlashAttention-2's algorithm 1. fp32.
//
//   nvcc -std=c++20 -O3 -arch=native -Iinclude examples/steps/04_online_softmax.cu -o step && ./step
//
// Scores are computed once and K is read once. When a tile has a larger score than those before it, sums so far are multiplied
// by e^(m_old - m_new); online_softmax keeps m and the sum of each row, and returns that factor.
#include "step.hpp"

struct flash_attention {
  static constexpr int block_m = 64, block_n = 64, size = steps::head_size;
  static constexpr int max_threads = 128, min_blocks = 1;
  using params = steps::problem<float>;
  using map_of_scores = giwa::thread_map<giwa::tile_shape<block_m, block_n>, 16, 8>;
  using map_of_output = giwa::thread_map<giwa::tile_shape<block_m, size>, 16, 8, 4>;
  struct shared_storage {
    giwa::shared_tile<float, giwa::tile_shape<block_m, size>, giwa::padded<4>> q;
    giwa::shared_tile<float, giwa::tile_shape<block_n, size>, giwa::padded<4>> k, v;
    giwa::shared_tile<float, giwa::tile_shape<block_m, block_n>, giwa::padded<8>> p;
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = giwa::with_threads<max_threads>(plain_block);
    const giwa::int64 query = block.block_rank() * block_m, first = p.first_key(query);
    giwa::load(block, p.q, giwa::index<2>{query, 0}, s.q);

    giwa::online_softmax<map_of_scores> softmax;
    giwa::register_tile<float, map_of_output> o;
    softmax.reset();
    o.fill(0);
    for (giwa::int64 key = first; key < first + p.tokens; key += block_n) {
      block.sync();  // all threads are done with the tiles before
      giwa::load(block, p.k, giwa::index<2>{key, 0}, s.k);
      giwa::load(block, p.v, giwa::index<2>{key, 0}, s.v);
      block.sync();
      giwa::register_tile<float, map_of_scores> scores;
      scores.fill(0);
      giwa::multiply_add(block.rank(), scores, s.q, giwa::transposed(s.k));

      float factor[map_of_scores::rows];
      softmax.update(block, scores, steps::scale_log2, factor);  // scores become weights
      o.transform_rows(factor, [](float x, float f) { return x * f; });
      scores.for_each(block.rank(), [&](float x, int row, int column) { s.p(row, column) = x; });
      block.sync();  // a thread of P V reads weights of other threads
      giwa::multiply_add(block.rank(), o, s.p, s.v);
    }
    softmax.finish(block);
    float normalizer[map_of_scores::rows];
    for (int r = 0; r < map_of_scores::rows; ++r) normalizer[r] = softmax.normalizer(r);
    o.transform_rows(normalizer, [](float x, float f) { return x * f; });
    giwa::store(block.rank(), o, p.o, giwa::index<2>{query, 0});
  }
};

int main() {
  return steps::run<float>("step 4, online softmax, fp32", [](const auto& where, const steps::problem<float>& p) {
    return giwa::launch(where, {.grid = p.q.extent(0) / flash_attention::block_m, .block = 128}, flash_attention{}, p);
  });
}
