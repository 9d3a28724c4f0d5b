// SPDX-License-Identifier: MIT
// Exercise 2: a block copies a tile into shared memory together. Fill in the hole (TODO); no GPU is needed.
//
//   g++ -std=c++20 -O1 -Iinclude -I/usr/local/cuda/include examples/exercises/02_shared_memory.cpp -o exercise && ./exercise
//
// It prints "right", or what is wrong. Add -DGIWA_SOLUTION to run the solution, solutions/02_shared_memory.inc. With
// -fsanitize=thread a missing barrier is reported with its line.
#include "exercise.hpp"

// A block has 64 threads, one for each query, and 64 keys at a time in shared memory.
struct shared_memory {
  static constexpr int block_n = 64, size = exercises::head_size;
  static constexpr int max_threads = 64, min_blocks = 1;
  using params = exercises::problem;
  struct shared_storage {
    giwa::shared_tile<float, giwa::tile_shape<block_n, size>> tile;
  };

  // Copies 64 rows of `from`, from row `first` on, into s.tile.
  template <class Block>
  static void load_tile([[maybe_unused]] const Block& block, [[maybe_unused]] const exercises::rows& from,
                        [[maybe_unused]] giwa::int64 first, [[maybe_unused]] shared_storage& s) {
#if defined(GIWA_SOLUTION)
#include "solutions/02_shared_memory.inc"
#else
    // TODO, about 6 lines. Element e of the tile is in row e / size and column e % size. The 64 threads share the work:
    // `for (const auto e : giwa::block_stride(block, block_n * size))` gives each thread its elements. When may the tile be
    // overwritten, and when may it be read? block.sync() waits until all threads of the block have arrived.
#endif
  }

  template <class Block>
  void operator()(Block block, const params& p, shared_storage& s) const {
    const giwa::int64 query = block.block_rank() * max_threads + block.rank();
    float largest = -INFINITY, sum = 0, o[size] = {}, scores[block_n];
    for (giwa::int64 key = 0; key < exercises::tokens; key += block_n) {
      load_tile(block, p.k, key, s);
      compute_scores(p, query, s, scores);
      for (const float x : scores) largest = std::max(largest, x);
    }
    for (giwa::int64 key = 0; key < exercises::tokens; key += block_n) {
      load_tile(block, p.k, key, s);
      compute_scores(p, query, s, scores);
      load_tile(block, p.v, key, s);
      for (int j = 0; j < block_n; ++j) {
        const float weight = std::exp(scores[j] - largest);
        sum += weight;
        for (int i = 0; i < size; ++i) o[i] += weight * s.tile(j, i);
      }
    }
    for (int i = 0; i < size; ++i) p.o(query, i) = o[i] / sum;
  }

  static void compute_scores(const params& p, giwa::int64 query, const shared_storage& s, float (&scores)[block_n]) {
    for (int j = 0; j < block_n; ++j) {
      float sum = 0;
      for (int i = 0; i < size; ++i) sum += p.q(query, i) * s.tile(j, i);
      scores[j] = sum * exercises::scale;
    }
  }
};

int main() {
  return exercises::check(
      [](const exercises::problem& p) {
        return giwa::launch(giwa::host, {.grid = exercises::tokens / 64, .block = 64}, shared_memory{}, p);
      },
      "a thread uses what others have copied, and the next tile replaces what others may still use: two barriers");
}
