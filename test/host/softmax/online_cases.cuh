// SPDX-License-Identifier: MIT
// Online softmax for the tests on the host executor and on a GPU: rows that come tile by tile, against the reference in double.
#ifndef GIWA_TEST_HOST_SOFTMAX_ONLINE_CASES_CUH
#define GIWA_TEST_HOST_SOFTMAX_ONLINE_CASES_CUH

#include <giwa/grid.cuh>
#include <giwa/softmax/online.cuh>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "host/softmax/reference.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/same_bits.hpp"

namespace giwa_test {

using giwa::thread_map, giwa::tile_shape, giwa::warp_map, giwa::warpgroup_map;

/// Updates the state with `tiles` tiles, and stores everything that the caller of online_softmax sees.
template <class Map, int Slack = 0, bool WithoutMaxima = false>
struct online_op {
  static constexpr int slack = Slack;
  static constexpr int max_threads = Map::threads, min_blocks = 1;
  static constexpr int rows = Map::shape::rows, columns = Map::shape::columns;
  using map = Map;
  using shared_storage = giwa::no_shared_storage;
  struct params {
    const float* scores;  // (rows, tiles columns)
    int tiles;
    float scale_log2;
    float* weights;  // (rows, tiles columns)
    float* factors;  // (tiles, rows)
    float* results;  // (4, rows): m, l, lse, normalizer
    int* unequal;    // number of lanes that disagree with others of their row
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    giwa::online_softmax<Map, 0, Slack> state;
    state.reset();
    for (int t = 0; t < p.tiles; ++t) {
      giwa::register_tile<float, Map> tile;
      const auto at = [&](int r, int c) { return (r * p.tiles + t) * columns + c; };
      tile.for_each(block.rank(), [&](float& x, int r, int c) { x = p.scores[at(r, c)]; });
      float factor[Map::rows];
      if constexpr (Slack == 0) {
        state.update(block, tile, p.scale_log2, factor);
      } else {
        // As the kernels do: m stays unless the vote asks for another, of the maxima, or of the sums if m was set before.
        GIWA_UNROLL
        for (int r = 0; r < Map::rows; ++r) factor[r] = 1;
        const giwa::register_tile<float, Map> scores = tile;
        float sum[Map::rows];
        bool repeats = true;
        if (WithoutMaxima && t > 0) {
          state.expose_empty_rows();
          state.weigh(tile, sum);
          repeats = block.any(!state.within_slack(sum));
        }
        if (repeats) {
          tile = scores;
          float largest[Map::rows];
          state.find_maxima(block, tile, largest);
          if (block.any(state.exceeds_slack(largest))) state.raise(largest, p.scale_log2, factor);
          state.weigh(tile, sum);
        }
        state.add(sum);
      }
      tile.for_each(block.rank(), [&](float& x, int r, int c) { p.weights[at(r, c)] = x; });
      put(block, factor, p.factors + t * rows, p.unequal);
    }
    state.finish(block);
    float lse[Map::rows], normalizer[Map::rows];
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) lse[r] = state.lse(r, p.scale_log2), normalizer[r] = state.normalizer(r);
    put(block, state.m, p.results, p.unequal);
    put(block, state.l, p.results + rows, p.unequal);
    put(block, lse, p.results + 2 * rows, p.unequal);
    put(block, normalizer, p.results + 3 * rows, p.unequal);
  }

  // Every lane that shares the row has the same bits; one writes them.
  template <class Block>
  GIWA_HOST_DEVICE static void put(Block block, const float (&values)[Map::rows], float* to, int* unequal) {
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) {
      giwa::uint32 bits;
      __builtin_memcpy(&bits, &values[r], 4);
      for (int mask = 1; mask < Map::lanes; mask *= 2)
        if (block.shuffle_xor(bits, mask) != bits) block.atomic_add(*unequal, 1);
      if (block.rank() % Map::lanes == 0) to[Map::row(block.rank(), r)] = values[r];
    }
  }
};

/// The states of the first half of the tiles and of the others, merged; stores the results of online_op, and as factors of the
/// first two tiles what the sums of the first half and of the others are to be multiplied by.
template <class Map, int Headroom>
struct online_merge_op : online_op<Map> {
  using typename online_op<Map>::params;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, giwa::no_shared_storage&) const {
    using op = online_op<Map>;
    giwa::online_softmax<Map, Headroom> half[2];
    for (int i = 0; i < 2; ++i) {
      half[i].reset();
      for (int t = i * (p.tiles / 2); t < (i == 0 ? p.tiles / 2 : p.tiles); ++t) {
        giwa::register_tile<float, Map> tile;
        tile.for_each(block.rank(), [&](float& x, int r, int c) { x = p.scores[(r * p.tiles + t) * op::columns + c]; });
        float factor[Map::rows];
        half[i].update(block, tile, p.scale_log2, factor);
      }
    }
    float of_other[Map::rows], of_own[Map::rows], lse[Map::rows];
    half[1].merge(half[0].m, half[0].l, p.scale_log2, of_other, of_own);
    half[1].finish(block);
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) lse[r] = half[1].lse(r, p.scale_log2);
    op::put(block, of_other, p.factors, p.unequal);
    op::put(block, of_own, p.factors + op::rows, p.unequal);
    op::put(block, half[1].m, p.results, p.unequal);
    op::put(block, half[1].l, p.results + op::rows, p.unequal);
    op::put(block, lse, p.results + 2 * op::rows, p.unequal);
  }
};

struct online_results {
  std::vector<float> weights, factors, results;
  std::vector<int> unequal;
};

/// Runs Op by where.run(op, scores, tiles, scale_log2, results).
template <class Op, class Where>
online_results run_online(const Where& where, const std::vector<float>& scores, int tiles, float scale_log2) {
  online_results r{std::vector<float>(scores.size(), -1.0f),
                   std::vector<float>(static_cast<std::size_t>(tiles * Op::rows)), std::vector<float>(4 * Op::rows),
                   std::vector<int>(1, 0)};
  REQUIRE(where.run(Op{}, scores, tiles, scale_log2, r));
  CHECK(r.unequal[0] == 0);
  return r;
}

/// Returns the scores of a row: those of the softmax tests, and rows with fully masked tiles.
inline std::vector<float> online_row(int columns, int tile_columns, int which) {
  std::vector<float> row = softmax_row<float>(columns, which);
  if (which % 3 == 1)  // masked tiles, the first among them
    for (int c = 0; c < columns; ++c)
      if (c / tile_columns % 2 == 0) row[static_cast<std::size_t>(c)] = -std::numeric_limits<float>::infinity();
  // Scores times the scale stay below 2^30; check_large has larger ones.
  for (float& x : row)
    if (std::isfinite(x)) x = std::fmin(std::fmax(x, -5e7f), 5e7f);
  return row;
}

/// Returns whether the results of one row are its softmax and log-sum-exp; `additions` is the longest chain of additions, and
/// `slack` that of online_softmax.
inline bool online_row_agrees(const std::vector<float>& row, double scale, int additions, int slack,
                              const std::vector<double>& softmax, double m, double l, double lse, double normalizer) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  std::vector<double> scaled(row.size());
  double maximum = -inf;
  bool bad = false;
  for (std::size_t i = 0; i < row.size(); ++i) {
    scaled[i] = scale * static_cast<double>(row[i]);
    bad = bad || std::isnan(row[i]) || scaled[i] == inf;
    if (scaled[i] > maximum) maximum = scaled[i];
  }
  const std::vector<double> expected = softmax_reference(scaled);
  if (bad) {
    bool all = std::isnan(l) && std::isnan(lse) && std::isnan(normalizer);
    for (const double x : softmax) all = all && std::isnan(x);
    return all;
  }
  if (maximum == -inf) {
    bool all = m == -inf && l == 0 && lse == -inf && normalizer == 0;
    for (const double x : softmax) all = all && x == 0;
    return all;
  }
  double largest = -inf;
  for (const float x : row) largest = x > largest ? x : largest;
  constexpr double log2_e = 1.4426950408889634;
  bool all = slack == 0 ? m == largest : m <= largest && (largest - m) * scale * log2_e <= slack * (1 + 0x1p-22);
  // Each exponent is rounded once; the rounding of its reference cancels. Weights below 2^-126 count as 0. Each
  // addition rounds the sum.
  const double rounding_of_sum = 0x1p-24 * additions;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double depth = maximum - scaled[i];
    const double tolerance =
        expected[i] * (0x1p-22 * (8 + slack + (depth < 100 ? depth : 100)) + rounding_of_sum) + 1e-36;
    all = all && std::abs(softmax[i] - expected[i]) <= tolerance;
  }
  long double sum = 0;
  for (const double x : scaled) sum += std::exp(static_cast<long double>(x - maximum));
  const double expected_lse = maximum + static_cast<double>(std::log(sum));
  return all &&
         std::abs(lse - expected_lse) <= 0x1p-21 * (1 + std::abs(expected_lse) + std::abs(maximum)) + rounding_of_sum;
}

/// The results of all rows.
template <class Op>
void check_rows(const std::vector<float>& scores, int tiles, float scale_log2, const online_results& got) {
  constexpr double ln_2 = 0.69314718055994530942;
  const int columns = tiles * Op::columns;
  const auto result = [&](int which, int row) {
    return static_cast<double>(got.results[static_cast<std::size_t>(which * Op::rows + row)]);
  };
  bool first_factors = true;
  for (int r = 0; r < Op::rows; ++r) {
    // A weight is multiplied by the factors of all later tiles and by the normalizer.
    std::vector<double> softmax(static_cast<std::size_t>(columns));
    double factor = result(3, r);
    for (int t = tiles - 1; t >= 0; --t) {
      for (int c = 0; c < Op::columns; ++c) {
        const auto i = static_cast<std::size_t>(t * Op::columns + c);
        softmax[i] = static_cast<double>(got.weights[static_cast<std::size_t>(r * columns) + i]) * factor;
      }
      const double of_tile = got.factors[static_cast<std::size_t>(t * Op::rows + r)];
      factor = factor * of_tile;
      if (t == 0) first_factors = first_factors && (of_tile == 0 || result(0, r) == HUGE_VAL);
    }
    const auto begin = scores.begin() + static_cast<std::ptrdiff_t>(r) * columns;
    CAPTURE(r, scale_log2, tiles, result(0, r), result(1, r), result(2, r), result(3, r));
    CHECK(online_row_agrees({begin, begin + columns}, static_cast<double>(scale_log2) * ln_2,
                            Op::columns / Op::map::lanes + Op::map::lanes + tiles, Op::slack, softmax, result(0, r),
                            result(1, r), result(2, r), result(3, r)));
  }
  CHECK(first_factors);
}

template <class Op, class Where>
void check_online(const Where& where, int tiles) {
  const int columns = tiles * Op::columns;
  for (const float scale_log2 : {1.44269504f, 0.127517432f, 11.0f}) {
    std::vector<float> scores;
    for (int r = 0; r < Op::rows; ++r) {
      const std::vector<float> row = online_row(columns, Op::columns, r);
      scores.insert(scores.end(), row.begin(), row.end());
    }
    const online_results got = run_online<Op>(where, scores, tiles, scale_log2);
    check_rows<Op>(scores, tiles, scale_log2, got);
  }
}

/// While the largest score stays the same, the factor is exactly 1: nothing drifts over hundreds of tiles.
template <class Op, class Where>
void check_factors_of_one(const Where& where) {
  constexpr int tiles = 40;
  std::vector<float> scores(static_cast<std::size_t>(Op::rows * tiles * Op::columns));
  random_sequence random(8);
  for (int r = 0; r < Op::rows; ++r)  // the first score is the largest; many magnitudes, all bits in use
    for (int c = 0; c < tiles * Op::columns; ++c)
      scores[static_cast<std::size_t>(r * tiles * Op::columns + c)] =
          1.37f * static_cast<float>(r * r - 100) -
          (c == 0 ? 0.0f : 0.01f * static_cast<float>(1 + random.below(1000)));
  const online_results got = run_online<Op>(where, scores, tiles, 1.2345678f);
  bool ones = true;
  for (int t = 1; t < tiles; ++t)
    for (int r = 0; r < Op::rows; ++r) ones = ones && got.factors[static_cast<std::size_t>(t * Op::rows + r)] == 1.0f;
  CHECK(ones);
}

/// A maximum that grows by less than Slack in each of several tiles stays, and with it the factor 1, until a weight would exceed
/// 2^Slack; then it is the largest score again.
template <class Op, class Where>
void check_slack(const Where& where) {
  constexpr int tiles = 12;
  std::vector<float> scores(static_cast<std::size_t>(Op::rows * tiles * Op::columns));
  for (int r = 0; r < Op::rows; ++r)
    for (int c = 0; c < tiles * Op::columns; ++c)
      scores[static_cast<std::size_t>(r * tiles * Op::columns + c)] =
          static_cast<float>(3 * (c / Op::columns) - c % Op::columns % 7 - r);
  const online_results got = run_online<Op>(where, scores, tiles, 1.0f);
  check_rows<Op>(scores, tiles, 1.0f, got);
  bool expected = true;
  for (int t = 1; t < tiles; ++t)  // 3, 6, and at 9 the maximum follows
    for (int r = 0; r < Op::rows; ++r)
      expected = expected && got.factors[static_cast<std::size_t>(t * Op::rows + r)] == (t % 3 == 0 ? 0x1p-9f : 1.0f);
  CHECK(expected);
  float largest = 0;
  for (const float w : got.weights) largest = std::fmax(largest, w);
  CHECK(largest == 64.0f);
}

/// Scores of any size, many of them equal, give their softmax; a product with the scale that overflows does not make its row
/// look empty.
template <class Op, class Where>
void check_large(const Where& where) {
  constexpr float scale_log2 = 1.7654321f;
  for (const float size : {4e7f, 8.5e7f, 2.3e8f, 1e9f, 1e11f, 3.3e22f, 1e38f, 3e38f}) {
    std::vector<float> scores(static_cast<std::size_t>(Op::rows * 2 * Op::columns), -size);
    for (std::size_t i = 0; i < scores.size(); i += 3)
      scores[i] = (i / static_cast<std::size_t>(2 * Op::columns) % 3 == 0 ? -0.9f * size : size) *
                  (1 - 0.25f * static_cast<float>(i % 4));
    const online_results got = run_online<Op>(where, scores, 2, scale_log2);
    CAPTURE(size);
    if (size <= 1e38f) {
      check_rows<Op>(scores, 2, scale_log2, got);
      continue;
    }
    bool seen = true;
    for (int r = 0; r < Op::rows; ++r) {
      const auto result = [&](int which) { return got.results[static_cast<std::size_t>(which * Op::rows + r)]; };
      const bool finite_sum = std::isfinite(result(1)) && result(1) > 0;
      seen = seen && result(2) != -HUGE_VALF && (result(3) != 0.0f || !finite_sum) &&
             (result(1) != 0 || result(3) == HUGE_VALF);
    }
    CHECK(seen);
  }
}

/// Without maxima the same weights, factors, m and l, bit for bit: in every kind of row, empty ones among them.
template <class Map, class Where>
void check_without_maxima(const Where& where, int tiles) {
  using with = online_op<Map, 6>;
  using without = online_op<Map, 6, true>;
  for (const float scale_log2 : {1.44269504f, 0.127517432f, 11.0f}) {
    std::vector<float> scores;
    for (int r = 0; r < with::rows; ++r) {
      const std::vector<float> row = online_row(tiles * with::columns, with::columns, r);
      scores.insert(scores.end(), row.begin(), row.end());
    }
    const online_results a = run_online<with>(where, scores, tiles, scale_log2),
                         b = run_online<without>(where, scores, tiles, scale_log2);
    CHECK(same_bits(a.results, b.results));
    CHECK(same_bits(a.factors, b.factors));
    CHECK(same_bits(a.weights, b.weights));
  }
  check_large<without>(where);
}

/// Two states merge to that of all tiles: rows whose maximum is in either half, rows with an empty half, and empty rows.
template <class Map, int Headroom, class Where>
void check_merge(const Where& where) {
  using op = online_op<Map>;
  constexpr int tiles = 4, columns = tiles * op::columns;
  constexpr float inf = std::numeric_limits<float>::infinity(), scale_log2 = 1.44269504f;
  std::vector<float> scores;
  for (int r = 0; r < op::rows; ++r)
    for (int c = 0; c < columns; ++c) {
      const bool first = c < columns / 2;
      const float x = static_cast<float>((c * 7 + r) % 11) / 4;
      scores.push_back(r % 5 == 0   ? (first ? x + 3 : x)
                       : r % 5 == 1 ? (first ? x : x + 3)
                       : r % 5 == 2 ? (first ? -inf : x)
                       : r % 5 == 3 ? (first ? x : -inf)
                                    : -inf);
    }
  const online_results all = run_online<op>(where, scores, tiles, scale_log2),
                       merged = run_online<online_merge_op<Map, Headroom>>(where, scores, tiles, scale_log2);
  for (std::size_t r = 0; r < static_cast<std::size_t>(op::rows); ++r) {
    const std::size_t l = r + op::rows, lse = l + op::rows;
    const float of_first = merged.factors[r], of_rest = merged.factors[r + op::rows], max = all.results[r];
    CAPTURE(Headroom, r, max, merged.results[r], all.results[l], merged.results[l], of_first, of_rest);
    CHECK(merged.results[r] == max);
    CHECK(std::abs(merged.results[l] - std::ldexp(all.results[l], Headroom)) <= 1e-5f * merged.results[l]);
    CHECK((merged.results[lse] == all.results[lse] || std::abs(merged.results[lse] - all.results[lse]) < 1e-5f));
    if (max == -inf) continue;
    float largest[2] = {-inf, -inf};
    for (int c = 0; c < columns; ++c) {
      float& half = largest[c < columns / 2 ? 0 : 1];
      half = std::max(half, scores[r * columns + static_cast<std::size_t>(c)]);
    }
    CHECK(std::abs(of_first - std::exp2((largest[0] - max) * scale_log2)) < 1e-5f);
    CHECK(std::abs(of_rest - std::exp2((largest[1] - max) * scale_log2)) < 1e-5f);
  }
}

}  // namespace giwa_test

#endif
