// SPDX-License-Identifier: MIT
// The steps of a tile of scores: with keys as rows they give the transposed of what they give with queries as rows.
#include <giwa/attention/score/score_steps.cuh>

#include <vector>

#include "support/catch.hpp"

using namespace giwa::detail;
using giwa::int64;

namespace {

constexpr int size = 16, threads = 32;
using map = giwa::thread_map<giwa::tile_shape<size, size>, 8, 4>;

struct add_place {
  GIWA_HOST_DEVICE float operator()(float score, giwa::attention_coord c) const {
    return score + static_cast<float>(100 * c.query + c.key);
  }
};

template <class RowMap>
struct set_score {
  RowMap at;
  GIWA_HOST_DEVICE void operator()(float& x, int row, int column) const {
    x = static_cast<float>(3 * at.query(row, column) - at.key(row, column));
  }
};
struct copy_out {
  float* to;  // (size, size)
  GIWA_HOST_DEVICE void operator()(float& x, int row, int column) const { to[row * size + column] = x; }
};

/// Element (row, column) of the tile after the steps, where the score of (query, key) was 3 query - key.
template <class RowMap, class Mask, class Score>
std::vector<float> stepped(const Mask& mask, const Score& score, float scale, const RowMap& at) {
  head_place h{};
  h.query_count = 37, h.key_count = 41, h.offset = 4;
  const score_steps<Mask, Score> steps{mask, score, scale};
  const typename score_steps<Mask, Score>::bounds bounds(h);
  std::vector<float> result(size * size);
  for (int thread = 0; thread < threads; ++thread) {
    giwa::register_tile<float, map> tile;
    tile.for_each(thread, set_score<RowMap>{at});
    steps.apply(thread, tile, bounds, giwa::tile_keep::some, at);
    tile.for_each(thread, copy_out{result.data()});
  }
  return result;
}

template <class Mask, class Score>
int elements_that_differ(const Mask& mask, const Score& score, float scale) {
  int different = 0;
  for (const int first_query : {0, 16, 32})
    for (const int first_key : {0, 16, 32}) {
      const auto by_query = stepped(mask, score, scale, rows_are_queries{first_query, first_key});
      const auto by_key = stepped(mask, score, scale, rows_are_keys{first_query, first_key});
      for (int i = 0; i < size; ++i)
        for (int j = 0; j < size; ++j)
          different +=
              by_query[static_cast<std::size_t>(i * size + j)] == by_key[static_cast<std::size_t>(j * size + i)] ? 0
                                                                                                                 : 1;
    }
  return different;
}

}  // namespace

TEST_CASE("rows that are keys get the transposed tile") {
  CHECK(elements_that_differ(giwa::full{}, giwa::plain_score{}, 0.5f) == 0);
  CHECK(elements_that_differ(giwa::causal{}, giwa::plain_score{}, -0.5f) == 0);
  CHECK(elements_that_differ(giwa::sliding_window{7}, add_place{}, 0.5f) == 0);
  CHECK(elements_that_differ(giwa::prefix{9} | giwa::causal{}, add_place{}, 0.f) == 0);
}
