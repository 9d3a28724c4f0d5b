// SPDX-License-Identifier: MIT
// How far an attention output is from the one in double precision, and how far it may be: what a plain attention is off, twice.
#pragma once

#include "place.cuh"

#include <giwa/attention.cuh>

#include <cmath>
#include <limits>

namespace example {

/// Attention as one writes it first, in the precision of its inputs: scores and weights are rounded to T, sums are in fp32.
/// The arguments are attention_reference's, with every length known.
template <class T, class Mask, class Score>
void plain_attention(const giwa::tensor_view<const T, 4>& q, const giwa::tensor_view<const T, 4>& k,
                     const giwa::tensor_view<const T, 4>& v, const giwa::tensor_view<double, 4>& o, const Mask& mask,
                     const Score& score) {
  const auto rounded = [](float x) { return giwa::convert<float>{}(giwa::convert<T>{}(x)); };
  const int64 keys = k.extent(1), group = q.extent(2) / k.extent(2), offset = keys - q.extent(1);
  const float scale = 1 / std::sqrt(static_cast<float>(q.extent(3)));
  std::vector<float> p(static_cast<std::size_t>(keys));
  const auto row = [&](int64 b, int64 query, int64 h) {
    float max = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64 key = 0; key < keys; ++key) {
      const giwa::attention_coord at{static_cast<int>(b), static_cast<int>(h), static_cast<int>(query),
                                     static_cast<int>(key), static_cast<int>(query + offset)};
      float s = 0;
      for (int64 i = 0; i < q.extent(3); ++i)
        s += giwa::convert<float>{}(q(b, query, h, i)) * giwa::convert<float>{}(k(b, key, h / group, i));
      s = mask(at) ? score(scale * rounded(s), at) : -std::numeric_limits<float>::infinity();
      p[static_cast<std::size_t>(key)] = s;
      max = std::max(max, s);
    }
    for (float& x : p) sum += x = std::isinf(max) ? 0 : std::exp(x - max);
    for (float& x : p) x = sum > 0 ? rounded(x / sum) : 0;
    for (int64 i = 0; i < v.extent(3); ++i) {
      float value = 0;
      for (int64 key = 0; key < keys; ++key)
        if (p[static_cast<std::size_t>(key)] > 0)
          value += p[static_cast<std::size_t>(key)] * giwa::convert<float>{}(v(b, key, h / group, i));
      o(b, query, h, i) = static_cast<double>(rounded(value));
    }
  };
  for (int64 b = 0; b < q.extent(0); ++b)
    for (int64 query = 0; query < q.extent(1); ++query)
      for (int64 h = 0; h < q.extent(2); ++h) row(b, query, h);
}

/// Largest differences from the output in double precision.
struct comparison {
  double error = 0, plain = 0,
         ulp = 0;  // of the output, of a plain attention, and a unit in the last place of the largest
  double lse = 0;  // of a row's lse beside 1 + its magnitude
  bool good() const { return error <= 2 * plain + ulp && lse < 1e-5; }
};

/// Compares an output in host memory; `rows` of the last queries of each head, or fewer where there are fewer. Their diagonal
/// is bottom_right's, which with as many queries as keys is the only one.
template <class T, class O, class Mask = giwa::full, class Score = giwa::plain_score>
comparison compare(const giwa::tensor_view<const T, 4>& q, const giwa::tensor_view<const T, 4>& k,
                   const giwa::tensor_view<const T, 4>& v, const giwa::tensor_view<const O, 4>& o,
                   const Mask& mask = {}, const Score& score = {}, int64 rows = 8,
                   const giwa::tensor_view<const float, 3>& lse = {}) {
  const int64 skip = std::max(int64{0}, q.extent(1) - rows);
  const auto last = [&](const auto& x) {
    giwa::index<4> sizes = x.extents();
    sizes[1] -= skip;
    return std::remove_cvref_t<decltype(x)>(x.data() + skip * x.stride(1), sizes, x.strides());
  };
  const auto tail = last(q);
  const giwa::index<4> sizes{tail.extent(0), tail.extent(1), tail.extent(2), v.extent(3)};
  std::vector<double> exact(static_cast<std::size_t>(tail.size() / q.extent(3) * v.extent(3))), plain(exact.size());
  const giwa::tensor_view<double, 4> expected(exact.data(), sizes), by_hand(plain.data(), sizes);
  std::vector<float> sums(static_cast<std::size_t>(sizes[0] * sizes[2] * sizes[1]));
  const giwa::tensor_view<float, 3> expected_lse(sums.data(), {sizes[0], sizes[2], sizes[1]});
  throw_if_failed(giwa::attention_reference(giwa::host, tail, k, v, expected, mask, score,
                                            {.lse = expected_lse, .align = giwa::alignment::bottom_right}));
  plain_attention(tail, k, v, by_hand, mask, score);

  comparison result;
  double largest = 0;
  const auto worse = [](double& worst, double x) { worst = x <= worst ? worst : std::isnan(x) ? INFINITY : x; };
  const auto got = last(o);
  std::size_t i = 0;
  for (int64 b = 0; b < sizes[0]; ++b)
    for (int64 query = 0; query < sizes[1]; ++query)
      for (int64 h = 0; h < sizes[2]; ++h)
        for (int64 e = 0; e < sizes[3]; ++e, ++i) {
          largest = std::max(largest, std::abs(exact[i]));
          worse(result.plain, std::abs(plain[i] - exact[i]));
          worse(result.error, std::abs(giwa::convert<double>{}(got(b, query, h, e)) - exact[i]));
        }
  for (int64 b = 0; b < sizes[0] && lse.size() > 0; ++b)
    for (int64 h = 0; h < sizes[2]; ++h)
      for (int64 query = 0; query < sizes[1]; ++query) {
        const double here = static_cast<double>(lse(b, h, query + skip)),
                     there = static_cast<double>(expected_lse(b, h, query));
        worse(result.lse, here == there ? 0 : std::abs(here - there) / (1 + std::abs(there)));
      }
  result.ulp = largest > 0 ? std::ldexp(1.0, std::ilogb(largest) + 1 - giwa::precision_of<T>::significand_bits) : 0;
  return result;
}

/// The same for tensors in a place's memory.
template <class T, class Place, class Mask = giwa::full, class Score = giwa::plain_score>
comparison compare(const Place& place, const tensor<T, 4, Place>& q, const tensor<T, 4, Place>& k,
                   const tensor<T, 4, Place>& v, const tensor<T, 4, Place>& o, const Mask& mask = {},
                   const Score& score = {}) {
  const std::vector<T> qs = q.on_host(place), ks = k.on_host(place), vs = v.on_host(place), os = o.on_host(place);
  using view = giwa::tensor_view<const T, 4>;
  return compare(view(qs.data(), q.sizes()), view(ks.data(), k.sizes()), view(vs.data(), v.sizes()),
                 view(os.data(), o.sizes()), mask, score);
}

/// Floating-point operations of the two products of `pairs` scores that count, of all heads.
inline double flops(int64 pairs, int64 head_size, int64 head_size_v) {
  return 2.0 * static_cast<double>(pairs) * static_cast<double>(head_size + head_size_v);
}

}  // namespace example
