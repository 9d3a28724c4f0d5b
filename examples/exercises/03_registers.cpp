// SPDX-License-Identifier: MIT
// Exercise 3: a tile of scores in registers. Fill in the hole (TODO); no GPU is needed.
//
//   g++ -std=c++20 -O1 -Iinclude -I/usr/local/cuda/include examples/exercises/03_registers.cpp -o exercise && ./exercise
//
// It prints "right", or what is wrong. Add -DGIWA_SOLUTION to run the solution, solutions/03_registers.inc. It counts the
// numbers that exercises::read() reads from shared memory.
#include "exercise.hpp"

// A block has 64 queries, and 16 x 8 threads: each has 4 x 8 scores: every 16th row, every 8th column.
struct registers {
  static constexpr int block_m = 64, block_n = 64, size = exercises::head_size;
  static constexpr int max_threads = 128, min_blocks = 1;
  static constexpr int my_rows = 4, my_columns = 8;
  using params = exercises::problem;
  struct shared_storage {
    giwa::shared_tile<float, giwa::tile_shape<64, size>> q, k, v;
    giwa::shared_tile<float, giwa::tile_shape<block_m, block_n>> scores;
  };

  template <class Block>
  void operator()(Block block, const params& p, shared_storage& s) const {
    const giwa::int64 query = block.block_rank() * block_m;
    const int first_row = block.rank() / 8, first_column = block.rank() % 8;
    giwa::load(block, p.q, giwa::index<2>{query, 0}, s.q);
    giwa::softmax_state<float> state;  // of row rank() / 2: two threads have each row of the output, half of it each
    float o[size / 2] = {};
    for (giwa::int64 key = 0; key < exercises::tokens; key += block_n) {
      block.sync();
      giwa::load(block, p.k, giwa::index<2>{key, 0}, s.k);
      giwa::load(block, p.v, giwa::index<2>{key, 0}, s.v);
      block.sync();
      float scores[my_rows][my_columns] = {};
#if defined(GIWA_SOLUTION)
#include "solutions/03_registers.inc"
#else
      // TODO, about 8 lines. scores[r][c] is the sum over i of q(first_row + 16 r, i) k(first_column + 8 c, i), by
      // exercises::read(s.q, row, i) and exercises::read(s.k, row, i). For each i read 4 numbers of q and 8 of k into
      // variables, and then multiply: 12 reads for 32 products.
#endif
      for (int r = 0; r < my_rows; ++r)
        for (int c = 0; c < my_columns; ++c)
          s.scores(first_row + 16 * r, first_column + 8 * c) = scores[r][c] * exercises::scale;
      block.sync();
      add_tile(block.rank() / 2, block.rank() % 2 * (size / 2), s, state, o);
    }
    for (int i = 0; i < size / 2; ++i)
      p.o(query + block.rank() / 2, block.rank() % 2 * (size / 2) + i) = o[i] / state.sum;
  }

  // The online softmax of one row and the products with half of V: exercise 4.
  static void add_tile(int row, int column, const shared_storage& s, giwa::softmax_state<float>& state,
                       float (&o)[size / 2]) {
    float largest = state.max;
    for (int j = 0; j < block_n; ++j) largest = std::max(largest, s.scores(row, j));
    const float factor = std::exp(state.max - largest);
    for (float& x : o) x *= factor;
    state.sum *= factor, state.max = largest;
    for (int j = 0; j < block_n; ++j) {
      const float weight = std::exp(s.scores(row, j) - largest);
      state.sum += weight;
      for (int i = 0; i < size / 2; ++i) o[i] += weight * s.v(j, column + i);
    }
  }
};

int main() {
  constexpr long scores = exercises::tokens * exercises::tokens, reads = scores * exercises::head_size * 12 / 32;
  return exercises::check(
      [](const exercises::problem& p) {
        return giwa::launch(giwa::host, {.grid = exercises::tokens / 64, .block = 128}, registers{}, p);
      },
      "the loop over i is the outer one; inside it float a[4] and float b[8] are read first, then scores[r][c] += a[r] "
      "* b[c]",
      reads);
}
