// SPDX-License-Identifier: MIT
// Problems of attention in e4m3 with scales, for the tests of the CPU and of a GPU, and their answers by three loops in fp64.
#ifndef GIWA_TEST_HOST_ATTENTION_E4M3_SCALES_CASES_HPP
#define GIWA_TEST_HOST_ATTENTION_E4M3_SCALES_CASES_HPP

#include <giwa/attention/problem/masks.hpp>
#include <giwa/attention/problem/options.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace giwa_test {

using giwa::e4m3;
using giwa::int64;
using giwa::tensor_view;

/// Which scales a problem has. Rows of a scale of 0 stand for all rows.
struct scale_kinds {
  bool q = false, k = false, v = false, v_channel = false, v_mean = false;
  int q_rows = 0, k_rows = 0, v_rows = 0;
  bool one_batch = false, one_head = false;  // the sizes of 1
};

/// Contiguous tensors (batch, rows, heads, head size), drawn from a seed, and scales of `least` to 3 `least` with both signs in q.
struct scaled_problem {
  int64 batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, size = 64;
  scale_kinds kinds;
  float deviation = 1, mean = 0, sink = -std::numeric_limits<float>::infinity();
  unsigned seed = 1;
  std::vector<e4m3> q, k, v;
  std::vector<float> q_scales, k_scales, v_scales, v_channel, v_mean, sinks;

  void draw(float least = 0.5f) {
    std::mt19937 random(seed);
    const auto numbers = [&](std::vector<e4m3>& to, int64 count, float centre, float spread) {
      std::normal_distribution<float> normal(centre, spread);
      to.clear();
      for (int64 i = 0; i < count; ++i) to.push_back(e4m3(normal(random)));
    };
    numbers(q, batch * queries * heads * size, 0, deviation);
    numbers(k, batch * keys * kv_heads * size, 0, 1);
    numbers(v, batch * keys * kv_heads * size, mean, 1);
    std::uniform_real_distribution<float> uniform(least, 3 * least);
    const auto scales = [&](std::vector<float>& to, bool given, int64 count, bool signs) {
      to.clear();
      for (int64 i = 0; given && i < count; ++i)
        to.push_back(uniform(random) * (signs && random() % 4 == 0 ? -1.f : 1.f));
    };
    scales(q_scales, kinds.q, batches() * groups(queries, kinds.q_rows) * (kinds.one_head ? 1 : heads), true);
    scales(k_scales, kinds.k, batches() * groups(keys, kinds.k_rows) * kv(), false);
    scales(v_scales, kinds.v, batches() * groups(keys, kinds.v_rows) * kv(), false);
    scales(v_channel, kinds.v_channel, kv() * size, true);
    scales(v_mean, kinds.v_mean, kv() * size, true);
    if (!std::isinf(sink)) sinks.assign(static_cast<std::size_t>(heads), sink);
  }
  int64 batches() const { return kinds.one_batch ? 1 : batch; }
  int64 kv() const { return kinds.one_head ? 1 : kv_heads; }
  static int64 groups(int64 rows, int of) { return of == 0 ? 1 : (rows + of - 1) / of; }

  /// The scales in memory that begins at these pointers.
  giwa::attention_scales scales(const float* q_at, const float* k_at, const float* v_at, const float* channel,
                                const float* means) const {
    giwa::attention_scales s;
    s.q_rows = kinds.q_rows, s.k_rows = kinds.k_rows, s.v_rows = kinds.v_rows;
    if (kinds.q) s.q = {q_at, {batches(), groups(queries, kinds.q_rows), kinds.one_head ? 1 : heads}};
    if (kinds.k) s.k = {k_at, {batches(), groups(keys, kinds.k_rows), kv()}};
    if (kinds.v) s.v = {v_at, {batches(), groups(keys, kinds.v_rows), kv()}};
    if (kinds.v_channel) s.v_channel = {channel, {kv(), size}};
    if (kinds.v_mean) s.v_mean = {means, {kv(), size}};
    return s;
  }
  giwa::attention_scales scales() const {
    return scales(q_scales.data(), k_scales.data(), v_scales.data(), v_channel.data(), v_mean.data());
  }

  double element(const std::vector<double>& of, int64 rows, int64 of_heads, int64 b, int64 i, int64 h, int64 d) const {
    return of[static_cast<std::size_t>(((b * rows + i) * of_heads + h) * size + d)];
  }
  double scale_of(const std::vector<float>& of, int64 rows, int group, int64 of_heads, int64 b, int64 i,
                  int64 h) const {
    if (of.empty()) return 1;
    const int64 width = kinds.one_head ? 1 : of_heads, at = kinds.one_batch ? 0 : b;
    return static_cast<double>(of[static_cast<std::size_t>(
        (at * groups(rows, group) + (group == 0 ? 0 : i / group)) * width + (kinds.one_head ? 0 : h))]);
  }
  double column_of(const std::vector<float>& of, int64 h, int64 d, double otherwise) const {
    return of.empty() ? otherwise
                      : static_cast<double>(of[static_cast<std::size_t>((kinds.one_head ? 0 : h) * size + d)]);
  }

  /// o (batch, queries, heads, head size) and lse (batch, heads, queries). sees(query, key) is the mask.
  template <class Sees>
  void answer(const Sees& sees, std::vector<double>& o, std::vector<double>& lse, int64 every = 1) const {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
    const auto exact = [](const std::vector<e4m3>& of) {
      std::vector<double> to;
      for (const e4m3 x : of) to.push_back(static_cast<double>(x));
      return to;
    };
    const std::vector<double> exact_q = exact(q), exact_k = exact(k), exact_v = exact(v);
    o.assign(q.size(), nan), lse.assign(static_cast<std::size_t>(batch * heads * queries), nan);
    for (int64 b = 0; b < batch; ++b)
      for (int64 h = 0; h < heads; ++h)
        for (int64 i = 0; i < queries; i += every) {
          const int64 shared = h / (heads / kv_heads);
          const double of_q =
              scale_of(q_scales, queries, kinds.q_rows, heads, b, i, h) / std::sqrt(static_cast<double>(size));
          std::vector<double> score(static_cast<std::size_t>(keys), -infinity);
          double largest = -infinity, sum = 0;
          for (int64 j = 0; j < keys; ++j) {
            if (!sees(i, j)) continue;
            double x = 0;
            for (int64 d = 0; d < size; ++d)
              x += element(exact_q, queries, heads, b, i, h, d) * element(exact_k, keys, kv_heads, b, j, shared, d);
            x *= of_q * scale_of(k_scales, keys, kinds.k_rows, kv_heads, b, j, shared);
            score[static_cast<std::size_t>(j)] = x;
            if (!(x <= largest)) largest = x;
          }
          if (!sinks.empty() && static_cast<double>(sink) > largest) largest = static_cast<double>(sink);
          std::vector<double> row(static_cast<std::size_t>(size), 0);
          for (int64 j = 0; j < keys; ++j) {
            if (!sees(i, j)) continue;
            const double weight = std::exp(score[static_cast<std::size_t>(j)] - largest);
            sum += weight;
            const double of_v = scale_of(v_scales, keys, kinds.v_rows, kv_heads, b, j, shared);
            for (int64 d = 0; d < size; ++d)
              row[static_cast<std::size_t>(d)] += weight * (element(exact_v, keys, kv_heads, b, j, shared, d) * of_v *
                                                                column_of(v_channel, shared, d, 1) +
                                                            column_of(v_mean, shared, d, 0));
          }
          if (!sinks.empty()) sum += std::exp(static_cast<double>(sink) - largest);
          for (int64 d = 0; d < size; ++d)
            o[static_cast<std::size_t>(((b * queries + i) * heads + h) * size + d)] =
                sum == 0 ? 0 : row[static_cast<std::size_t>(d)] / sum;
          lse[static_cast<std::size_t>((b * heads + h) * queries + i)] = sum == 0 ? -infinity : largest + std::log(sum);
        }
  }
};

/// How far results are from the answers; rows whose answer is NaN because it was left out are not compared.
struct distance {
  double square = 0, size = 0, largest = 0;  // sums of squares of the difference and of the answer; largest difference
  int64 other_nan = 0;                       // one is NaN, the other not
  double relative() const { return std::sqrt(square / (size > 0 ? size : 1)); }
};
template <class T>
distance distance_of(const std::vector<T>& got, const std::vector<double>& right, const std::vector<double>& lse_of_row,
                     int64 queries, int64 heads, int64 width) {
  distance d;
  for (std::size_t i = 0; i < right.size(); ++i) {
    const auto row = static_cast<int64>(i) / width, h = row % heads, query = row / heads % queries,
               b = row / heads / queries;
    if (width > 1 && std::isnan(lse_of_row[static_cast<std::size_t>((b * heads + h) * queries + query)]) &&
        std::isnan(right[i]))
      continue;
    const auto x = static_cast<double>(got[i]);
    if (std::isnan(x) != std::isnan(right[i])) {
      ++d.other_nan;
      continue;
    }
    if (std::isnan(x) || (std::isinf(x) && x == right[i])) continue;
    d.square += (x - right[i]) * (x - right[i]), d.size += right[i] * right[i];
    if (!(std::fabs(x - right[i]) <= d.largest)) d.largest = std::fabs(x - right[i]);
  }
  return d;
}

}  // namespace giwa_test

#endif
