// SPDX-License-Identifier: MIT
// One row of attention beside two others: in double, and as a plain program with rounded intermediates would have it.
#ifndef GIWA_TEST_GPU_ATTENTION_ROW_CHECK_HPP
#define GIWA_TEST_GPU_ATTENTION_ROW_CHECK_HPP

#include <giwa/numeric/philox.hpp>

#include <cmath>

#include "gpu/attention/draw.hpp"

namespace giwa_test::attention {

/// A tensor where a kernel, or the host, finds it.
struct located {
  void* data;  // of element (0, 0, 0, 0)
  int64 stride[4];
  GIWA_HOST_DEVICE int64 at(int64 a, int64 b, int64 c) const { return a * stride[0] + b * stride[1] + c * stride[2]; }
};

/// A problem as the check reads it. Masks and modifiers are written here once more, from what they mean.
struct located_problem {
  compiled_types types;
  located q, k, v, o, lse, bias;
  int64 bias_extent[4];
  const sequence_rows* sequences;
  const float *slopes, *sinks;  // (heads)
  const int *q_segments, *k_segments, *prefix_counts;
  int64 segment_stride;  // between sequences
  int64 batch, heads, kv_heads;
  bool packed, has_lse, has_sinks, bottom_right;
  float scale, cap;
  int back, ahead, prefix_count, diagonal_offset;  // diagonal_offset: without bottom_right
};

struct place_of_score {
  int64 batch, head, query, key, diagonal;
};

/// The user's mask of the tests, and of the check.
GIWA_HOST_DEVICE constexpr bool scattered_keeps(int64 batch, int64 head, int64 query, int64 key) {
  if (query % 13 == 5) return false;
  giwa::uint32 x = static_cast<giwa::uint32>(batch * 7919 + head * 104729 + query * 1299709 + key * 15485863);
  x = (x ^ (x >> 15)) * 0x2c1b3c6du;
  return ((x ^ (x >> 12)) >> 8) % 4 != 0;
}

GIWA_HOST_DEVICE inline bool keeps(const located_problem& p, const place_of_score& c) {
  switch (p.types.mask) {
    case mask_kind::full: return true;
    case mask_kind::causal: return c.key <= c.diagonal;
    case mask_kind::window: return c.diagonal - c.key <= p.back && c.key - c.diagonal <= p.ahead;
    case mask_kind::prefix: {
      const int first = p.prefix_counts != nullptr ? p.prefix_counts[c.batch] : p.prefix_count;
      return c.key < first || (c.key <= c.diagonal && c.diagonal - c.key < p.back);
    }
    case mask_kind::segments:
      return p.q_segments[c.batch * p.segment_stride + c.query] == p.k_segments[c.batch * p.segment_stride + c.key] &&
             c.key <= c.diagonal;
    case mask_kind::scattered: return scattered_keeps(c.batch, c.head, c.query, c.key);
  }
  return false;
}

template <class T>
GIWA_HOST_DEVICE float in_float(const void* data, int64 i) {
  return giwa::convert<float>{}(static_cast<const T*>(data)[i]);
}
template <class T>
GIWA_HOST_DEVICE float rounded_to(float x) {
  return giwa::convert<float>{}(giwa::convert<T>{}(x));
}
GIWA_HOST_DEVICE inline float rounded_to(element e, float x) {
  return e == element::of_fp32 ? x : e == element::of_fp16 ? rounded_to<fp16>(x) : rounded_to<bf16>(x);
}

/// A modifier in double or in float.
template <class T, class Real>
GIWA_HOST_DEVICE Real modified(const located_problem& p, const place_of_score& c, Real score) {
  const auto capped = [&]() -> Real {
    if constexpr (std::is_same_v<Real, float>)
      return p.cap * tanhf(score / p.cap);
    else
      return static_cast<double>(p.cap) * tanh(static_cast<double>(score) / static_cast<double>(p.cap));
  };
  const auto bias_at = [&] {
    const int64 position[4] = {c.batch, c.head, c.query, c.key};
    int64 offset = 0;
    for (int d = 0; d < 4; ++d)
      if (p.bias_extent[d] != 1) offset += position[d] * p.bias.stride[d];
    return offset;
  };
  switch (p.types.score) {
    case score_kind::plain: return score;
    case score_kind::softcap: return capped();
    case score_kind::alibi: {
      const int64 distance = c.diagonal > c.key ? c.diagonal - c.key : c.key - c.diagonal;
      return score - static_cast<Real>(p.slopes[c.head]) * static_cast<Real>(distance);
    }
    case score_kind::bias: return score + static_cast<Real>(in_float<T>(p.bias.data, bias_at()));
    case score_kind::capped_bias: return capped() + static_cast<Real>(in_float<float>(p.bias.data, bias_at()));
  }
  return score;
}

/// What is known of a key while its row is checked.
struct key_score {
  double exact;
  float plain, magnitude;  // magnitude: of what is rounded on the way, sum of |q k| and score
  int kept;
};

/// What the check found in one row. Errors are the largest distances from the double result, of giwa and of the plain program.
struct row_finding {
  double error, plain_error;            // over the elements in which all three are finite
  double error_without_plain;           // where the plain program is not
  double error_squares, plain_squares;  // sums
  double largest;                       // |result|
  double values;            // root of the sum of v^2, over l: times the rounding of a weight, that of the result
  double sum, root, score;  // as giwa_test::row_scale: of |p v|, of (p v)^2, and the largest |score|, before and after
  double lse, lse_error, plain_lse_error;
  double wanted, plain;  // at `column`
  float got, got_lse;
  int column;      // of the largest error, or of the first element that is wrong in kind
  int wrong_kind;  // elements that are not finite and should be, or the other way round
  int kept;        // keys
  bool empty, wrong_lse;
};

/// One thread, for the host.
struct one_lane {
  GIWA_HOST_DEVICE int rank() const { return 0; }
  GIWA_HOST_DEVICE int size() const { return 1; }
  GIWA_HOST_DEVICE void sync() const {}
  template <class Value, class Join>
  GIWA_HOST_DEVICE Value all(Value x, Join) const {
    return x;
  }
};

struct sum_of {
  template <class Value>
  GIWA_HOST_DEVICE Value operator()(Value a, Value b) const {
    return a + b;
  }
};
struct largest_of {
  template <class Value>
  GIWA_HOST_DEVICE Value operator()(Value a, Value b) const {
    return a > b || a != a ? a : b;  // NaN wins
  }
};

template <class Real>
GIWA_HOST_DEVICE bool is_finite(Real x) {
  return x - x == 0;
}

/// Row (sequence, head, query) number `row` of the problem, by the threads of a group; `scores` holds as many as there are
/// keys. The output and lse are read, and put back to bytes 0xff, which is what a kernel must leave all around them.
template <class T, class Group>
GIWA_HOST_DEVICE row_finding check_row(const Group& g, const located_problem& p, int64 row, key_score* scores) {
  int64 b = 0;
  while (b + 1 < p.batch && p.sequences[b + 1].first_row <= row) ++b;
  const sequence_rows s = p.sequences[b];
  const int64 h = (row - s.first_row) / s.q_length, i = (row - s.first_row) % s.q_length;
  const int64 kv = h / (p.heads / p.kv_heads), offset = p.bottom_right ? s.k_length - s.q_length : p.diagonal_offset;
  const int64 stored = p.packed ? 0 : b, k_stored = s.k_stored;
  const T* const q = static_cast<const T*>(p.q.data) + p.q.at(stored, s.q_begin + i, h);
  const auto key = [&](int64 j) { return static_cast<const T*>(p.k.data) + p.k.at(k_stored, s.k_begin + j, kv); };
  const auto value = [&](int64 j) { return static_cast<const T*>(p.v.data) + p.v.at(k_stored, s.k_begin + j, kv); };
  const auto real = giwa::convert<float>{};

  constexpr double infinite = HUGE_VAL;
  double exact_max = -infinite;
  float plain_max = -HUGE_VALF;
  int kept = 0;
  for (int64 j = g.rank(); j < s.k_length; j += g.size()) {
    const place_of_score c{b, h, i, j, i + offset};
    key_score mine{-infinite, -HUGE_VALF, 0, keeps(p, c) ? 1 : 0};
    if (mine.kept != 0) {
      double exact = 0, magnitude = 0;
      float plain = 0;
      for (int d = 0; d < p.types.head_size; ++d) {
        const float x = real(q[d]), y = real(key(j)[d]);
        const double product = static_cast<double>(x) * static_cast<double>(y);
        exact += product;
        magnitude += fabs(product);
        plain = fmaf(x, y, plain);
      }
      mine.exact = modified<T, double>(p, c, exact * static_cast<double>(p.scale));
      mine.magnitude = static_cast<float>(magnitude) * fabsf(p.scale) + fabsf(static_cast<float>(mine.exact));
      mine.plain = modified<T, float>(p, c, plain * p.scale);
      exact_max = largest_of{}(mine.exact, exact_max);
      plain_max = largest_of{}(mine.plain, plain_max);
      ++kept;
    }
    scores[j] = mine;
  }
  exact_max = g.all(exact_max, largest_of{});
  plain_max = g.all(plain_max, largest_of{});
  kept = g.all(kept, sum_of{});
  const double key_max = exact_max;
  if (p.has_sinks) {
    exact_max = largest_of{}(exact_max, static_cast<double>(p.sinks[h]));
    plain_max = largest_of{}(plain_max, p.sinks[h]);
  }
  double exact_sum = 0, score = 0;
  float plain_sum = 0, plain_sum_of_lse = 0;
  for (int64 j = g.rank(); j < s.k_length; j += g.size()) {
    if (scores[j].kept == 0) continue;
    const double weight = exp(scores[j].exact - exact_max);
    if (scores[j].exact - key_max > -14) score = largest_of{}(static_cast<double>(scores[j].magnitude), score);
    exact_sum += scores[j].exact = weight;
    plain_sum_of_lse += expf(scores[j].plain - plain_max);
    plain_sum += scores[j].plain = expf(rounded_to<T>(scores[j].plain) - rounded_to<T>(plain_max));
  }
  exact_sum = g.all(exact_sum, sum_of{});
  plain_sum = g.all(plain_sum, sum_of{});
  plain_sum_of_lse = g.all(plain_sum_of_lse, sum_of{});
  if (p.has_sinks) {
    exact_sum += exp(static_cast<double>(p.sinks[h]) - exact_max);
    plain_sum += expf(p.sinks[h] - rounded_to<T>(plain_max));
    plain_sum_of_lse += expf(p.sinks[h] - plain_max);
  }
  g.sync();  // the scores of all are there

  row_finding f{};
  f.empty = kept == 0;
  f.kept = kept;
  f.column = -1;
  double worst = -1;
  for (int d = g.rank(); d < p.types.head_size_v; d += g.size()) {
    double exact = 0, sum = 0, squares = 0, values = 0;
    float plain = 0;
    bool flushed = false;  // an infinite value has a weight that may be flushed to 0
    for (int64 j = 0; j < s.k_length; ++j) {
      if (scores[j].kept == 0) continue;
      const float y = real(value(j)[d]);
      const double product = scores[j].exact * static_cast<double>(y);
      exact += product;
      flushed = flushed || (y - y != 0 && scores[j].exact < 0x1p-125 * exact_sum);
      sum += fabs(product);
      squares += product * product;
      values += static_cast<double>(y) * static_cast<double>(y);
      plain = fmaf(rounded_to<T>(scores[j].plain / plain_sum), y, plain);
    }
    if (kept != 0) exact /= exact_sum;
    f.sum = largest_of{}(kept != 0 ? sum / exact_sum : 0, f.sum);
    f.values = largest_of{}(kept != 0 ? sqrt(values) / exact_sum : 0, f.values);
    f.root = largest_of{}(kept != 0 ? sqrt(squares) / exact_sum : 0, f.root);
    plain = rounded_to(p.types.output, plain);
    const int64 at = p.o.at(stored, s.q_begin + i, h) + d;
    float got = 0;
    if (p.types.output == element::of_fp32) {
      got = in_float<float>(p.o.data, at);
      static_cast<giwa::uint32*>(p.o.data)[at] = 0xffffffffu;
    } else {
      got = p.types.output == element::of_fp16 ? in_float<fp16>(p.o.data, at) : in_float<bf16>(p.o.data, at);
      static_cast<unsigned short*>(p.o.data)[at] = 0xffffu;
    }
    const float nearest = rounded_to(p.types.output, static_cast<float>(exact));  // past the output's range: infinite
    const bool finite = is_finite(nearest), both_nan = got != got && (exact != exact || plain != plain || flushed);
    double distance = 0;
    // An infinite value whose weight is 0 makes NaN where the weight is multiplied, and infinity where it is only added. A weight
    // below 2^-126 may be 0: fp32 exponentials flush it, and so does the factor of a row that is far below its sink.
    const bool both_infinite = exact != exact && !is_finite(got);
    if (finite ? !is_finite(got) || (f.empty && got != 0) : got != nearest && !both_nan && !both_infinite) {
      ++f.wrong_kind;
      distance = infinite;
    } else if (finite) {
      distance = fabs(static_cast<double>(got) - exact);
      const double apart = fabs(static_cast<double>(plain) - exact);
      if (is_finite(plain)) {
        f.error = largest_of{}(distance, f.error);
        f.plain_error = largest_of{}(apart, f.plain_error);
        f.error_squares += distance * distance;
        f.plain_squares += apart * apart;
      } else {
        f.error_without_plain = largest_of{}(distance, f.error_without_plain);
      }
      f.largest = largest_of{}(fabs(exact), f.largest);
    }
    if (distance > worst) worst = distance, f.column = d, f.got = got, f.wanted = exact, f.plain = plain;
  }
  const double worst_of_all = g.all(worst, largest_of{});
  const int column = g.all(worst == worst_of_all ? f.column : -1, largest_of{});
  const bool holds = worst == worst_of_all && f.column == column;
  f.got = g.all(holds ? f.got : 0.0f, sum_of{});
  f.wanted = g.all(holds ? f.wanted : 0.0, sum_of{});
  f.plain = g.all(holds ? f.plain : 0.0, sum_of{});
  f.column = column;
  f.wrong_kind = g.all(f.wrong_kind, sum_of{});
  for (double* x : {&f.error, &f.plain_error, &f.error_without_plain, &f.largest, &f.sum, &f.root, &f.values})
    *x = g.all(*x, largest_of{});
  for (double* x : {&f.error_squares, &f.plain_squares}) *x = g.all(*x, sum_of{});
  f.score = g.all(score, largest_of{}) + (kept != 0 ? exact_max - key_max : 0);  // as far as the sink is above the keys

  if (!p.has_lse) return f;
  f.lse = exact_max + log(exact_sum);
  const double plain_lse = static_cast<double>(plain_max + logf(plain_sum_of_lse));
  if (f.empty) f.lse = p.has_sinks ? static_cast<double>(p.sinks[h]) : -infinite;
  const int64 at = p.lse.at(stored, h, s.q_begin + i);
  f.got_lse = static_cast<const float*>(p.lse.data)[at];
  g.sync();
  if (g.rank() == 0) static_cast<giwa::uint32*>(p.lse.data)[at] = 0xffffffffu;
  if (is_finite(f.lse) && is_finite(f.got_lse)) {
    f.lse_error = fabs(static_cast<double>(f.got_lse) - f.lse);
    f.plain_lse_error = is_finite(plain_lse) && !f.empty ? fabs(plain_lse - f.lse) : 0;
  } else {
    f.wrong_lse = is_finite(f.lse) || is_finite(f.got_lse) || (f.empty && f.got_lse != static_cast<float>(f.lse));
  }
  return f;
}

}  // namespace giwa_test::attention

#endif
