// SPDX-License-Identifier: MIT
// How far a result of attention may be from the reference: measured beside the plain implementation.
#ifndef GIWA_TEST_SUPPORT_ATTENTION_TOLERANCE_HPP
#define GIWA_TEST_SUPPORT_ATTENTION_TOLERANCE_HPP

#include <giwa/attention/problem/params.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

namespace giwa_test {

using giwa::int64;

/// What decides how much a row's rounding errors weigh: in its largest element of o, the sum of |p v|, and the root of the sum
/// of (p v)^2; and the largest |score| of a key whose p counts in the lse. score_of_o: of a key whose p counts beside the
/// largest p of a key, and how far the sink is above the keys. moved, moved_row, moved_lse: what the rounding errors of scores
/// do to an element of o, at most, to the row in the 2-norm, and to the lse, in units of 2^-24. values: root of the sum of v^2, times the
/// largest p: what the rounding of the p that are subnormal numbers of fp16, beside a p of 1, is multiplied by.
struct row_scale {
  float sum, root, score;
  float score_of_o = 0, moved = 0, moved_row = 0, moved_lse = 0, values = 0;
};

/// What the plain implementation rounds S and P to: e4m3 is only stored, so S and P stay in fp32.
template <class T>
using rounded_to = std::conditional_t<std::is_same_v<T, giwa::e4m3>, float, T>;

/// One row of the plain implementation: S = Q K^T summed in fp32 and rounded to rounded_to<T>, softmax in fp32, P rounded to it, P V summed
/// in fp32 and rounded to O. The lse is that of the scores before they are rounded.
template <class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE row_scale attention_plain_row(const giwa::detail::attention_params<T, O, Mask, Score>& p,
                                               const giwa::detail::attention_head<T, O>& h, int query) {
  using giwa::convert;
  constexpr float infinity = giwa::detail::infinity_of<float>;
  const giwa::exponential exp;
  const auto coord = [&](int key) { return giwa::attention_coord{h.batch, h.head, query, key, query + h.offset}; };
  float squares = 0;  // of the products in the last score
  const auto score_of = [&](int key) {
    float sum = 0;
    squares = 0;
    for (int64 i = 0; i < h.q.extent(1); ++i) {
      const float product = convert<float>{}(h.q.data()[query * h.q.stride(0) + i]) *
                            convert<float>{}(h.k.data()[key * h.k.stride(0) + i]);
      sum += product;
      squares += product * product;
    }
    return p.score(sum * p.scale, coord(key));
  };
  const float sink = p.sinks == nullptr ? -infinity : p.sinks[h.head * p.sink_stride];
  auto exact = giwa::softmax_state<float>::of(sink), rounded = exact;
  float top = -infinity;  // the largest score of a key
  for (int key = 0; key < h.keys(); ++key) {
    if (!p.mask(coord(key))) continue;
    const float s = score_of(key);
    exact = giwa::softmax_state<float>::merge(exact, giwa::softmax_state<float>::of(s));
    const float r = convert<float>{}(convert<rounded_to<T>>{}(s));
    rounded = giwa::softmax_state<float>::merge(rounded, giwa::softmax_state<float>::of(r));
    top = r > top ? r : top;
  }

  constexpr int most = giwa::attention_limits::head_size;
  float value[most], sum[most], square[most], values[most];
  // A score that is off by e moves o by e p (v - o) and lse by e p, and errors of different scores are independent:
  // their squares add up. q k is a sum of d products, and each of its d partial sums is rounded by up to 2^-24 of
  // itself. Where signs are random, the squares of the partial sums have the sum d / 2 times that of the squares of the
  // products. Then the exponent, the distance of the score to the reference, is rounded. A score modifier counts as one
  // of slope 1.
  double moves_v2[most], moves_v[most], moves = 0;  // sums of (e p v)^2, (e p)^2 v, (e p)^2
  const int64 width = h.v.extent(1);
  for (int64 i = 0; i < width; ++i) value[i] = sum[i] = square[i] = values[i] = 0, moves_v2[i] = moves_v[i] = 0;
  row_scale scale{0, 0, 0};
  giwa::detail::weight_factors<giwa::stdlib::remove_cvref_t<decltype(p.score)>> dropped(p.score, h.batch, h.head);
  for (int key = 0; key < h.keys(); ++key) {
    if (!p.mask(coord(key))) continue;
    const float s = convert<float>{}(convert<rounded_to<T>>{}(score_of(key)));
    const float weight =
        convert<float>{}(convert<rounded_to<T>>{}(exp(s - rounded.reference()) * rounded.normalizer()));
    const float size = s < 0 ? -s : s;
    if (weight > 1e-6f && size > scale.score) scale.score = size;
    if (s > top - 14 && size > scale.score_of_o) scale.score_of_o = size;  // p is more than 1e-6 of the largest
    const double partial = 0.5 * static_cast<double>(h.q.extent(1)) * static_cast<double>(squares);
    const double by = static_cast<double>(p.scale), exponent = static_cast<double>(s - rounded.reference());
    const double of_p = static_cast<double>(weight), move = of_p * of_p * (by * by * partial + exponent * exponent);
    moves += move;
    const T* const v = h.v.data() + key * h.v.stride(0);
    const auto factor = static_cast<float>(dropped(query, key));
    for (int64 i = 0; i < width; ++i) {
      const float of_v = factor * convert<float>{}(v[i * h.v.stride(1)]), x = weight * of_v;
      value[i] += x;
      sum[i] += x < 0 ? -x : x;
      square[i] += x * x;
      values[i] += of_v * of_v;
      const double y = static_cast<double>(of_v);
      moves_v2[i] += move * y * y, moves_v[i] += move * y;
    }
  }
  double largest_move = 0, all_moves = 0;
  for (int64 i = 0; i < width; ++i) {
    h.o.data()[query * h.o.stride(0) + i] = convert<O>{}(value[i]);
    scale.sum = sum[i] > scale.sum ? sum[i] : scale.sum;
    scale.root = square[i] > scale.root ? square[i] : scale.root;
    scale.values = values[i] > scale.values ? values[i] : scale.values;
    const double x = static_cast<double>(value[i]), move = moves_v2[i] - 2 * x * moves_v[i] + x * x * moves;
    largest_move = move > largest_move ? move : largest_move;
    all_moves += move > 0 ? move : 0;
  }
  scale.root = __builtin_sqrtf(scale.root);
  scale.values =
      top > -infinity ? __builtin_sqrtf(scale.values) * exp(top - rounded.reference()) * rounded.normalizer() : 0.f;
  scale.moved = static_cast<float>(__builtin_sqrt(largest_move));
  scale.moved_row = static_cast<float>(__builtin_sqrt(all_moves));
  scale.moved_lse = static_cast<float>(__builtin_sqrt(moves));
  if (sink > top && top > -infinity) scale.score_of_o += sink - top;
  if (h.lse != nullptr) h.lse[query * h.lse_stride] = exact.lse();
  return scale;
}

/// The distance between neighbouring values of T at x >= 0.
template <class T>
double attention_ulp(double x) {
  constexpr int bits = giwa::precision_of<T>::significand_bits, smallest = std::is_same_v<T, giwa::fp16> ? -14 : -126;
  const int exponent = x > 0 && std::isfinite(x) ? std::max(smallest, std::ilogb(x)) : smallest;
  return std::ldexp(1.0, exponent - bits + 1);
}

/// The worst of what was compared; `failure` is empty where all of it is within the tolerance.
struct attention_verdict {
  double error = 0, plain_error = 0,
         limit = 0;  // the largest |o - reference|, the plain implementation's, what is allowed
  std::string failure;
  bool ok() const { return failure.empty(); }
};

/// Compares rows of `width` elements, one behind the other, T the type of q, k and v, O of o. The rule, each part for the whole
/// problem and row by row:
///   max |o - reference|         <= 2 max |plain - reference|         + unit
///   || o - reference ||_2 (row) <= 2 || plain - reference ||_2 (row) + unit sqrt(width)
/// where unit is one ulp of T at the largest |o| (of the problem; of the row, or of its root-of-squares, which rounding sees
/// where o happens to cancel), and what fp32 costs beside the plain error, which may be small by luck:
///   4 + |score| units of 2^-24 of the sum of |p v|: an exponent of that size is rounded. The score is that of a key that
///     counts in o. Where a sink has nearly all of the softmax, that is a key with a tiny p, whose distance to the sink is
///     rounded too.
///   2^-24 of row_scale::values, where T is fp16: a weight that is a subnormal number of it is rounded to 2^-25 of the largest one, which
///     is seen where the values of the keys with larger weights are zeros.
///   row_scale::moved: q k is rounded relative to its partial sums, however small the score in which they end. A row with
///     many scores averages their errors; in one with few, luck decides whose is larger.
/// Where the plain result is not finite but the reference is: within 4 ulp. Where the reference is not finite: the same.
template <class T, class O>
attention_verdict judge_attention(int64 width, const std::vector<double>& got, const std::vector<double>& reference,
                                  const std::vector<double>& plain, const std::vector<row_scale>& scales) {
  attention_verdict verdict;
  const auto rows = static_cast<int64>(scales.size());
  double largest = 0, arithmetic = 0;
  const auto known = [](double x) { return std::isfinite(x) ? x : 0.0; };
  const auto of_sums = [&](const row_scale& s) {  // what fp32 costs an element, but for the rounding of scores
    const double score = static_cast<double>(std::max(s.score, s.score_of_o));
    return known(0x1p-24 * (4 + score) * static_cast<double>(s.sum)) +
           (std::is_same_v<T, giwa::fp16> ? known(0x1p-24 * static_cast<double>(s.values)) : 0);
  };
  for (int64 r = 0; r < rows; ++r) {
    const row_scale& s = scales[static_cast<std::size_t>(r)];
    arithmetic = std::max(arithmetic, of_sums(s) + known(0x1p-24 * static_cast<double>(s.moved)));
    for (int64 i = 0; i < width; ++i) {
      const double x = std::abs(reference[static_cast<std::size_t>(r * width + i)]);
      if (std::isfinite(x)) largest = std::max(largest, x);
    }
  }
  const auto fail = [&](int64 row, int64 column, const char* what, double a, double b, double c) {
    if (!verdict.failure.empty()) return;
    char text[256];
    std::snprintf(text, sizeof text, "row %lld, element %lld: %s (%.9g, %.9g, %.9g)", static_cast<long long>(row),
                  static_cast<long long>(column), what, a, b, c);
    verdict.failure = text;
  };
  const double unit = attention_ulp<T>(largest) + arithmetic;
  int64 worst = 0;
  for (int64 r = 0; r < rows; ++r) {
    const row_scale& s = scales[static_cast<std::size_t>(r)];
    double squares = 0, plain_squares = 0, row_largest = known(static_cast<double>(s.root));
    for (int64 i = 0; i < width; ++i) {
      const auto at = static_cast<std::size_t>(r * width + i);
      const double g = got[at], p = plain[at], x = reference[at];
      const double rounded = giwa::convert<double>{}(giwa::convert<O>{}(x));
      if (!std::isfinite(rounded)) {
        const bool same = std::isnan(x) ? std::isnan(g) : g == rounded || (std::isnan(p) && std::isnan(g));
        if (!same) fail(r, i, "not finite in the reference: got, reference, plain", g, x, p);
      } else if (!std::isfinite(g)) {
        fail(r, i, "not finite: got, reference, plain", g, x, p);
      } else if (!std::isfinite(p)) {
        const double off = std::abs(g - x), limit = 4 * attention_ulp<T>(largest);
        if (off > limit) fail(r, i, "plain is not finite: got, reference, allowed", g, x, limit);
      } else {
        if (std::abs(g - x) > verdict.error) worst = r * width + i;
        verdict.error = std::max(verdict.error, std::abs(g - x));
        verdict.plain_error = std::max(verdict.plain_error, std::abs(p - x));
        squares += (g - x) * (g - x);
        plain_squares += (p - x) * (p - x);
        row_largest = std::max(row_largest, std::abs(x));
      }
    }
    const double row_unit = (attention_ulp<T>(row_largest) + of_sums(s)) * std::sqrt(static_cast<double>(width)) +
                            known(0x1p-24 * static_cast<double>(s.moved_row));
    const double limit = 2 * std::sqrt(plain_squares) + row_unit;
    if (std::sqrt(squares) > limit)
      fail(r, 0, "the row is off: L2 error, plain's, allowed", std::sqrt(squares), std::sqrt(plain_squares), limit);
  }
  verdict.limit = 2 * verdict.plain_error + unit;
  if (verdict.error > verdict.limit)
    fail(worst / width, worst % width, "off: error, plain's largest, allowed", verdict.error, verdict.plain_error,
         verdict.limit);
  return verdict;
}

/// The same for the lse: within twice plain's largest error, 2^-22 of the score's and the logarithm's size, and what the rounding
/// of partial sums of q k does to it.
inline attention_verdict judge_lse(const std::vector<float>& got, const std::vector<float>& reference,
                                   const std::vector<float>& plain, const std::vector<row_scale>& scales) {
  attention_verdict verdict;
  for (std::size_t r = 0; r < got.size(); ++r)
    if (std::isfinite(reference[r]) && std::isfinite(plain[r]))
      verdict.plain_error = std::max(verdict.plain_error, std::abs(static_cast<double>(plain[r]) - reference[r]));
  for (std::size_t r = 0; r < got.size() && verdict.ok(); ++r) {
    const double g = got[r], x = reference[r], off = std::abs(g - x);
    const double size = std::abs(x) + static_cast<double>(scales[r].score),
                 moved = static_cast<double>(scales[r].moved_lse);
    verdict.limit = 2 * verdict.plain_error + 0x1p-22 * std::max(1.0, std::isfinite(size) ? size : 0.0) +
                    0x1p-24 * (std::isfinite(moved) ? moved : 0);
    const bool same = std::isnan(x) ? std::isnan(g) : std::isinf(x) ? g == x : off <= verdict.limit;
    if (std::isfinite(off)) verdict.error = std::max(verdict.error, off);
    if (same) continue;
    char text[160];
    std::snprintf(text, sizeof text, "lse of row %zu: got %.9g, reference %.9g, plain %.9g, allowed %.3g", r, g, x,
                  static_cast<double>(plain[r]), verdict.limit);
    verdict.failure = text;
  }
  return verdict;
}

}  // namespace giwa_test

#endif
