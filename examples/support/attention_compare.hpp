// SPDX-License-Identifier: MIT
// Compares an attention output with attention_reference in double precision. The tolerance is twice the error of
// unfused attention.
#pragma once

#include <giwa/host.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

namespace example {

using giwa::int64;
using giwa::throw_if_failed;

/// Returns the elements as contiguous floats, which hold each of them exactly. The rest is then compiled once for all types.
template <class T>
std::vector<float> widened(const giwa::tensor_view<T, 4>& from) {
  std::vector<float> to;
  to.reserve(static_cast<std::size_t>(from.size()));
  for (int64 b = 0; b < from.extent(0); ++b)
    for (int64 row = 0; row < from.extent(1); ++row)
      for (int64 h = 0; h < from.extent(2); ++h)
        for (int64 i = 0; i < from.extent(3); ++i) to.push_back(giwa::convert<float>{}(from(b, row, h, i)));
  return to;
}

template <class T>
float rounded_to(float x) {
  return giwa::convert<float>{}(giwa::convert<T>{}(x));
}

/// (batch, length, heads, head size), with values of the tested precision.
using float_tensor = giwa::tensor_view<const float, 4>;

/// Computes unfused attention in the precision of its inputs: scores and probabilities are rounded to it, sums are in fp32.
/// The arguments are those of attention_reference. The diagonal is bottom_right's.
template <class Mask, class Score>
void plain_attention(const float_tensor& q, const float_tensor& k, const float_tensor& v, float (*rounded)(float),
                     const giwa::tensor_view<double, 4>& o, const Mask& mask, const Score& score) {
  const int64 keys = k.extent(1), group = q.extent(2) / k.extent(2), offset = keys - q.extent(1);
  const float scale = 1 / std::sqrt(static_cast<float>(q.extent(3)));
  std::vector<float> p(static_cast<std::size_t>(keys));
  const auto row = [&](int64 b, int64 query, int64 h) {
    float max = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64 key = 0; key < keys; ++key) {
      const giwa::attention_coord at{static_cast<int>(b), static_cast<int>(h), static_cast<int>(query),
                                     static_cast<int>(key), static_cast<int>(query + offset)};
      float s = 0;
      for (int64 i = 0; i < q.extent(3); ++i) s += q(b, query, h, i) * k(b, key, h / group, i);
      s = mask(at) ? score(scale * rounded(s), at) : -std::numeric_limits<float>::infinity();
      p[static_cast<std::size_t>(key)] = s;
      max = std::max(max, s);
    }
    for (float& x : p) sum += x = std::isinf(max) ? 0 : std::exp(x - max);
    for (float& x : p) x = sum > 0 ? rounded(x / sum) : 0;
    for (int64 i = 0; i < v.extent(3); ++i) {
      float value = 0;
      for (int64 key = 0; key < keys; ++key)
        if (p[static_cast<std::size_t>(key)] > 0) value += p[static_cast<std::size_t>(key)] * v(b, key, h / group, i);
      o(b, query, h, i) = static_cast<double>(rounded(value));
    }
  };
  for (int64 b = 0; b < q.extent(0); ++b)
    for (int64 query = 0; query < q.extent(1); ++query)
      for (int64 h = 0; h < q.extent(2); ++h) row(b, query, h);
}

/// The largest differences from the output in double precision.
struct comparison {
  double error = 0;  // of the output
  double plain = 0;  // of unfused attention
  double ulp = 0;    // one unit in the last place of the largest output
  double lse = 0;    // of a row's lse, relative to 1 + its magnitude
  bool good() const { return std::isfinite(plain) && error <= 2 * plain + ulp && lse < 1e-5; }
};

/// Compares an output, and its lse if there is one, in host memory.
template <class Mask, class Score>
comparison compare_floats(const float_tensor& q, const float_tensor& k, const float_tensor& v, const float_tensor& o,
                          float (*rounded)(float), int significand_bits, const Mask& mask, const Score& score,
                          const giwa::tensor_view<const float, 3>& lse) {
  const giwa::index<4> sizes = o.extents();
  std::vector<double> exact(static_cast<std::size_t>(o.size())), plain(exact.size());
  const giwa::tensor_view<double, 4> expected(exact.data(), sizes), by_hand(plain.data(), sizes);
  std::vector<float> sums(static_cast<std::size_t>(sizes[0] * sizes[2] * sizes[1]));
  const giwa::tensor_view<float, 3> expected_lse(sums.data(), {sizes[0], sizes[2], sizes[1]});
  throw_if_failed(giwa::attention_reference(giwa::host, q, k, v, expected, mask, score,
                                            {.lse = expected_lse, .align = giwa::alignment::bottom_right}));
  plain_attention(q, k, v, rounded, by_hand, mask, score);

  comparison result;
  double largest = 0;
  const auto worse = [](double& worst, double x) { worst = x <= worst ? worst : std::isnan(x) ? INFINITY : x; };
  for (std::size_t i = 0; i < exact.size(); ++i) {
    largest = std::max(largest, std::abs(exact[i]));
    worse(result.plain, std::abs(plain[i] - exact[i]));
    worse(result.error, std::abs(double{o.data()[i]} - exact[i]));
  }
  for (int64 b = 0; b < sizes[0] && lse.size() > 0; ++b)
    for (int64 h = 0; h < sizes[2]; ++h)
      for (int64 query = 0; query < sizes[1]; ++query) {
        const double here = double{lse(b, h, query)}, there = double{expected_lse(b, h, query)};
        worse(result.lse, here == there ? 0 : std::abs(here - there) / (1 + std::abs(there)));
      }
  result.ulp = largest > 0 ? std::ldexp(1.0, std::ilogb(largest) + 1 - significand_bits) : 0;
  return result;
}

/// A mask of a whole problem, for a call with its last queries only: adds `skip` to the number of a query.
template <class Mask>
struct mask_of_last_queries {
  Mask mask;
  int skip;
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const {
    c.query += skip;
    return mask(c);
  }
};

/// A score modifier of a whole problem, for a call with its last queries only.
template <class Score>
struct score_of_last_queries {
  Score score;
  int skip;
  GIWA_HOST_DEVICE float operator()(float x, giwa::attention_coord c) const {
    c.query += skip;
    return score(x, c);
  }
};

/// Compares the last `rows` queries of each head, or all if there are fewer. Mask and score modifier see the coordinates of the
/// whole problem. The diagonal is bottom_right's, which is also top_left's if there are as many queries as keys.
template <class T, class Mask = giwa::full, class Score = giwa::plain_score>
comparison compare(const giwa::tensor_view<const T, 4>& q, const giwa::tensor_view<const T, 4>& k,
                   const giwa::tensor_view<const T, 4>& v, const giwa::tensor_view<const T, 4>& o,
                   const Mask& mask = {}, const Score& score = {}, int64 rows = 8,
                   const giwa::tensor_view<const float, 3>& lse = {}) {
  const int64 skip = std::max(int64{0}, q.extent(1) - rows);
  const auto last = [&]<class View>(const View& x, int dimension) {
    auto sizes = x.extents();
    sizes[dimension] -= x.size() > 0 ? skip : 0;
    return View(x.data() + (x.size() > 0 ? skip * x.stride(dimension) : 0), sizes, x.strides());
  };
  const auto q_end = last(q, 1), o_end = last(o, 1);
  const std::vector<float> qs = widened(q_end), ks = widened(k), vs = widened(v), os = widened(o_end);
  const auto compared = [&](const auto& score_of_all) {
    return compare_floats(float_tensor(qs.data(), q_end.extents()), float_tensor(ks.data(), k.extents()),
                          float_tensor(vs.data(), v.extents()), float_tensor(os.data(), o_end.extents()), rounded_to<T>,
                          giwa::precision_of<T>::significand_bits,
                          mask_of_last_queries<Mask>{mask, static_cast<int>(skip)}, score_of_all, last(lse, 2));
  };
  if constexpr (std::is_same_v<Score, giwa::plain_score>)  // the reference keeps an unmodified score in double
    return compared(score);
  else
    return compared(score_of_last_queries<Score>{score, static_cast<int>(skip)});
}

}  // namespace example
