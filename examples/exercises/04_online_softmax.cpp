// SPDX-License-Identifier: MIT
// Exercise 4: the online softmax. Fill in the hole (TODO); no GPU is needed.
//
//   g++ -std=c++20 -O1 -Iinclude -I/usr/local/cuda/include examples/exercises/04_online_softmax.cpp -o exercise && ./exercise
//
// It prints "right", or what is wrong. Add -DGIWA_SOLUTION to run the solution, solutions/04_online_softmax.inc.
#include "exercise.hpp"

// A block has 64 threads, one for each query, and 64 keys at a time in shared memory. K and V are read once.
struct online_softmax {
  static constexpr int block_n = 64, size = exercises::head_size;
  static constexpr int max_threads = 64, min_blocks = 1;
  using params = exercises::problem;
  struct shared_storage {
    giwa::shared_tile<float, giwa::tile_shape<block_n, size>> k, v;
  };

  template <class Block>
  void operator()(Block block, const params& p, shared_storage& s) const {
    const giwa::int64 query = block.block_rank() * max_threads + block.rank();
    float largest = -INFINITY;  // score of the tiles so far
    float sum = 0;              // of e^(score - largest) over the tiles so far
    float o[size] = {};         // the sum of e^(score - largest) v
    for (giwa::int64 key = 0; key < exercises::tokens; key += block_n) {
      block.sync();
      giwa::load(block, p.k, giwa::index<2>{key, 0}, s.k);
      giwa::load(block, p.v, giwa::index<2>{key, 0}, s.v);
      block.sync();
      float scores[block_n];
      for (int j = 0; j < block_n; ++j) {
        scores[j] = 0;
        for (int i = 0; i < size; ++i) scores[j] += p.q(query, i) * s.k(j, i) * exercises::scale;
      }
#if defined(GIWA_SOLUTION)
#include "solutions/04_online_softmax.inc"
#else
      // TODO, about 10 lines. The largest score of this tile and the tiles before; what `sum` and `o` must be multiplied by, since
      // they are relative to the old maximum; then the weights of this tile, which are added to `sum`, and times v(j, i) to o[i].
      static_cast<void>(scores), static_cast<void>(largest), static_cast<void>(sum);
#endif
    }
    for (int i = 0; i < size; ++i) p.o(query, i) = o[i] / (sum == 0 ? 1 : sum);
  }
};

int main() {
  return exercises::check(
      [](const exercises::problem& p) {
        return giwa::launch(giwa::host, {.grid = exercises::tokens / 64, .block = 64}, online_softmax{}, p);
      },
      "a new maximum changes the unit of earlier sums: multiply sum and o by e^(old maximum - new maximum)");
}
