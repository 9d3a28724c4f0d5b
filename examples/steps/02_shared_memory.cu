// SPDX-License-Identifier: MIT
// Attention, step 2: a block loads tiles into shared memory, where all of its threads use them. fp32.
//
//   nvcc -std=c++20 -O3 -arch=native -Iinclude examples/steps/02_shared_memory.cu -o step && ./step
//
// A tile of 64 keys is read from memory once for 32 queries instead of once for each. Every product still reads two numbers
// from shared memory, and scores and sums are kept there too.
#include "step.hpp"

struct shared_memory {
  static constexpr int block_m = 32, block_n = 64, size = steps::head_size;  // queries and keys of a tile
  static constexpr int max_threads = 256, min_blocks = 1;
  using params = steps::problem<float>;
  struct shared_storage {
    giwa::shared_tile<float, giwa::tile_shape<block_m, size>> q, o;
    // K, then V. Lanes read a column of K: a word of padding after each row puts its elements into different banks.
    giwa::shared_tile<float, giwa::tile_shape<block_n, size>, giwa::padded<1>> kv;
    giwa::shared_tile<float, giwa::tile_shape<block_m, block_n>> scores;
    float largest[block_m], sum[block_m];
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const giwa::int64 query = block.block_rank() * block_m, first = p.first_key(query);
    giwa::load(block, p.q, giwa::index<2>{query, 0}, s.q);
    for (const auto e : giwa::block_stride(block, block_m * size)) at(s.o, e) = 0;
    for (const auto row : giwa::block_stride(block, block_m)) s.largest[row] = -1e30f, s.sum[row] = 0;

    for (giwa::int64 key = first; key < first + p.tokens; key += block_n) {  // the first pass: the largest score
      compute_scores(block, p, key, s);
      for (int row = block.warp(); row < block_m; row += max_threads / 32) {  // a warp for each row
        const float mine = giwa::larger{}(s.scores(row, block.lane()), s.scores(row, block.lane() + 32));
        const float largest = giwa::reduce_warp(block, mine, giwa::larger{});
        if (block.lane() == 0) s.largest[row] = giwa::larger{}(s.largest[row], largest);
      }
    }
    for (giwa::int64 key = first; key < first + p.tokens; key += block_n) {  // the second: weights and values
      compute_scores(block, p, key, s);
      giwa::load(block, p.v, giwa::index<2>{key, 0}, s.kv);  // all threads are done with K
      for (int row = block.warp(); row < block_m; row += max_threads / 32) {
        float mine = 0;
        for (int column = block.lane(); column < block_n; column += 32)
          mine += s.scores(row, column) = giwa::device_exponential{}(s.scores(row, column) - s.largest[row]);
        const float sum = giwa::reduce_warp(block, mine);
        if (block.lane() == 0) s.sum[row] += sum;
      }
      block.sync();  // the weights and V are complete
      for (const auto e : giwa::block_stride(block, block_m * size)) {
        const int row = static_cast<int>(e) / size, column = static_cast<int>(e) % size;
        float sum = 0;
        for (int j = 0; j < block_n; ++j) sum += s.scores(row, j) * s.kv(j, column);
        s.o(row, column) += sum;
      }
    }
    for (const auto e : giwa::block_stride(block, block_m * size)) at(s.o, e) /= s.sum[e / size];
    block.sync();
    giwa::store(block, s.o, p.o, giwa::index<2>{query, 0});
  }

  template <class Tile>
  GIWA_HOST_DEVICE static float& at(Tile& tile, giwa::int64 e) {
    return tile(static_cast<int>(e) / Tile::columns, static_cast<int>(e) % Tile::columns);
  }

  /// Loads a tile of K and computes its scores. Both are complete when it returns.
  template <class Block>
  GIWA_HOST_DEVICE static void compute_scores(const Block& block, const params& p, giwa::int64 key, shared_storage& s) {
    block.sync();  // all threads are done with the tile before
    giwa::load(block, p.k, giwa::index<2>{key, 0}, s.kv);
    block.sync();
    for (const auto e : giwa::block_stride(block, block_m * block_n)) {
      const int row = static_cast<int>(e) / block_n, column = static_cast<int>(e) % block_n;
      float sum = 0;
      for (int i = 0; i < size; ++i) sum += s.q(row, i) * s.kv(column, i);
      s.scores(row, column) = sum * steps::scale;
    }
    block.sync();
  }
};

int main() {
  return steps::run<float>("step 2, shared memory, fp32", [](const auto& where, const steps::problem<float>& p) {
    return giwa::launch(where, {.grid = p.q.extent(0) / shared_memory::block_m, .block = 256}, shared_memory{}, p);
  });
}
