// SPDX-License-Identifier: MIT
// Attention, step 3: scores and output in registers, 32 of each in a thread. fp32.
//
//   nvcc -std=c++20 -O3 -arch=native -Iinclude examples/steps/03_registers.cu -o step && ./step
//
// A thread has 4 x 8 scores: 12 numbers read from shared memory give 32 products, where step 2 reads 2 for each. Threads that
// share a row are lanes of one warp, so that its largest score and its sum need shuffles and no barrier.
#include "step.hpp"

struct registers {
  static constexpr int block_m = 64, block_n = 64, size = steps::head_size;
  static constexpr int max_threads = 128, min_blocks = 1;
  using params = steps::problem<float>;
  // 16 x 8 threads. A thread has every 16th row, and of it every 8th score, or two runs of 4 outputs.
  using map_of_scores = giwa::thread_map<giwa::tile_shape<block_m, block_n>, 16, 8>;
  using map_of_output = giwa::thread_map<giwa::tile_shape<block_m, size>, 16, 8, 4>;
  static constexpr int rows = map_of_scores::rows;
  struct shared_storage {
    giwa::shared_tile<float, giwa::tile_shape<block_m, size>, giwa::padded<4>> q;
    giwa::shared_tile<float, giwa::tile_shape<block_n, size>, giwa::padded<4>> kv;    // K, then V
    giwa::shared_tile<float, giwa::tile_shape<block_m, block_n>, giwa::padded<8>> p;  // the weights, an operand of P V
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = giwa::with_threads<max_threads>(plain_block);  // copies of tiles are unrolled
    const giwa::int64 query = block.block_rank() * block_m, first = p.first_key(query);
    giwa::load(block, p.q, giwa::index<2>{query, 0}, s.q);

    float largest[rows], sum[rows] = {};
    for (float& x : largest) x = -1e30f;
    giwa::register_tile<float, map_of_scores> scores;
    for (giwa::int64 key = first; key < first + p.tokens; key += block_n) {
      compute_scores(block, p, key, scores, s);
      giwa::reduce_rows_of_thread(scores, largest, giwa::larger{});
    }
    giwa::reduce_over_lanes<map_of_scores>(block, largest, giwa::larger{});

    giwa::register_tile<float, map_of_output> o;
    o.fill(0);
    for (giwa::int64 key = first; key < first + p.tokens; key += block_n) {
      compute_scores(block, p, key, scores, s);
      scores.transform_rows(largest,
                            [](float x, float m) { return giwa::device_exponential{}(steps::scale * (x - m)); });
      giwa::reduce_rows_of_thread(scores, sum, giwa::plus{});
      scores.for_each(block.rank(), [&](float x, int row, int column) { s.p(row, column) = x; });
      block.sync();  // all threads are done with K
      giwa::load(block, p.v, giwa::index<2>{key, 0}, s.kv);
      block.sync();
      giwa::multiply_add(block.rank(), o, s.p, s.kv);
    }
    giwa::reduce_over_lanes<map_of_scores>(block, sum, giwa::plus{});
    o.transform_rows(sum, [](float x, float l) { return x / l; });  // the rows of both maps are the same
    giwa::store(block.rank(), o, p.o, giwa::index<2>{query, 0});
  }

  /// scores = q k^T, without the scale, for the keys from `key` on.
  template <class Block, class Scores>
  GIWA_HOST_DEVICE static void compute_scores(const Block& block, const params& p, giwa::int64 key, Scores& scores,
                                              shared_storage& s) {
    block.sync();  // all threads are done with the tile before
    giwa::load(block, p.k, giwa::index<2>{key, 0}, s.kv);
    block.sync();
    scores.fill(0);
    giwa::multiply_add(block.rank(), scores, s.q, giwa::transposed(s.kv));
  }
};

int main() {
  return steps::run<float>("step 3, registers, fp32", [](const auto& where, const steps::problem<float>& p) {
    return giwa::launch(where, {.grid = p.q.extent(0) / registers::block_m, .block = 128}, registers{}, p);
  });
}
