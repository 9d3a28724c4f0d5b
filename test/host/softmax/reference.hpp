// SPDX-License-Identifier: MIT
// Shared by the softmax tests: the reference in double, the error bounds, and hostile rows.
#ifndef GIWA_TEST_HOST_SOFTMAX_REFERENCE_HPP
#define GIWA_TEST_HOST_SOFTMAX_REFERENCE_HPP

#include <giwa/numeric/philox.hpp>
#include <giwa/numeric/precision.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace giwa_test {

using giwa::int64;

/// Returns the softmax of one row in double precision, with giwa's conventions for rows without a finite element.
inline std::vector<double> softmax_reference(const std::vector<double>& x) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  double max = -inf;
  long double sum = 0;  // wider than double, so that results in double can be checked
  bool bad = false;
  for (const double v : x) {
    bad = bad || std::isnan(v) || v == inf;
    if (v > max) max = v;
  }
  std::vector<double> y(x.size(), 0.0);
  if (bad) return std::vector<double>(x.size(), std::numeric_limits<double>::quiet_NaN());
  if (max == -inf) return y;
  const auto weight = [max](double v) { return std::exp(static_cast<long double>(v) - max); };
  for (const double v : x) sum += weight(v);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<double>(weight(x[i]) / sum);
  return y;
}

/// The distance between neighbouring values of T at x > 0.
template <class T>
double ulp_at(double x) {
  constexpr int bits = giwa::precision_of<T>::significand_bits;
  constexpr int smallest = std::is_same_v<T, giwa::fp16> ? -14 : std::is_same_v<T, double> ? -1022 : -126;
  int exponent = smallest;
  if (x > 0) exponent = std::max(smallest, std::ilogb(x));
  return std::ldexp(1.0, exponent - bits + 1);
}

/// Returns the largest legal distance from the reference: half a unit of U, plus the error of the arithmetic. That is 8
/// units in the last place of the computing type. And because e^d inherits the absolute errors of d = x - max and of d
/// log2 e, half a unit for each of the two, times |d|, which is about the logarithm of the result.
template <class T, class U>
double softmax_tolerance(double expected) {
  constexpr bool wide = std::is_same_v<T, double> || std::is_same_v<U, double>;
  const double unit = wide ? 0x1p-52 : 0x1p-23;
  const double arithmetic = expected > 0 ? unit * (8 - std::log(expected)) * expected : 0.0;
  const double vanishing = wide ? 1e-305 : 0x1p-125;  // exponentials below the normal numbers count as 0
  return (sizeof(U) == 2 ? 0.501 * ulp_at<U>(expected) : 0.0) + arithmetic + vanishing;
}

template <class T, class U>
bool softmax_agrees(double got, double expected) {
  if (std::isnan(expected)) return std::isnan(got);
  return std::abs(got - expected) <= softmax_tolerance<T, U>(expected);
}

/// Returns the error of the softmax y of an fp32 row, in the terms of docs/softmax.md: the largest error in units of 2^-23 of the
/// result, minus one for each unit of m - x, minus one for each unit of the mean of m - x weighted by the result. The bound is 8.
/// Results below 2^-100 are skipped.
inline double softmax_units(const std::vector<float>& x, const std::vector<float>& y) {
  double max = -std::numeric_limits<double>::infinity();
  for (const float v : x) max = std::max(max, static_cast<double>(v));
  std::vector<double> tile_sums, tile_means;  // of 2^16 elements each, so that the error of these sums stays negligible
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 65536 == 0) tile_sums.push_back(0), tile_means.push_back(0);
    const double weight = std::exp(x[i] - max);
    tile_sums.back() += weight;
    tile_means.back() += weight == 0 ? 0 : weight * (max - x[i]);
  }
  double sum = 0, mean = 0, worst = 0;
  for (std::size_t i = 0; i < tile_sums.size(); ++i) sum += tile_sums[i], mean += tile_means[i];
  mean /= sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(x[i] - max) / sum;
    if (expected < 0x1p-100) continue;
    const double units = std::abs(y[i] - expected) / (0x1p-23 * expected) - (max - x[i]) - mean;
    if (std::isnan(units)) return units;
    worst = std::max(worst, units);
  }
  return worst;
}

/// Returns a row whose sum is hard to add up. Kind 0: one element, and equal smaller ones, whose rounding errors have one sign.
/// Kind 1: elements that rise slowly, so that every tile has a new maximum. Kind 2: random numbers.
inline std::vector<float> softmax_long_row(int64 columns, int kind) {
  const giwa::philox random(7);
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (int64 i = 0; i < columns; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (kind == 0) row[at] = i == 0 ? 0.0f : -0.3f;
    if (kind == 1) row[at] = static_cast<float>(static_cast<double>(i) / static_cast<double>(columns));
    if (kind == 2) row[at] = random.uniform<float>(static_cast<giwa::uint64>(i)) * 2 - 1;
  }
  return row;
}

/// Returns a row of T of one of 13 kinds, chosen by `which`, so that neighbouring rows are of different kinds.
template <class T>
std::vector<T> softmax_row(int64 columns, int which) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const double huge = std::is_same_v<T, giwa::fp16> ? 65504.0 : std::is_same_v<T, giwa::bf16> ? 3.3e38 : 3.4e38;
  const giwa::philox random(static_cast<giwa::uint64>(which) + 1);
  std::vector<T> row(static_cast<std::size_t>(columns));
  for (int64 i = 0; i < columns; ++i) {
    const double u = random.uniform<double>(static_cast<giwa::uint64>(i)) * 2 - 1;  // in [-1, 1)
    double x = u;
    switch (which % 13) {
      case 0: x = 5 * u; break;
      case 1: x = 100 * u; break;   // most weights vanish
      case 2: x = 1000 + u; break;  // overflows without the maximum
      case 3: x = huge * u; break;
      case 4: x = i % 3 == 0 ? huge : -huge; break;  // the difference overflows float
      case 5: x = -inf; break;
      case 6: x = i < columns / 2 ? -inf : 3 * u; break;  // whole warps without an element
      case 7: x = i == columns - 1 ? 2.0 : -inf; break;
      case 8: x = i == columns / 3 ? std::nan("") : u; break;
      case 9: x = i == columns / 2 ? inf : 5 * u; break;
      case 10: x = 1.5; break;  // all equal
      case 11: x = i == 0 ? -inf : -200 + 20 * u; break;
      default: x = i % 7 == 0 ? std::nan("") : -inf; break;
    }
    row[static_cast<std::size_t>(i)] = giwa::convert<T>{}(x);
  }
  return row;
}

template <class T>
std::vector<double> in_double(const std::vector<T>& row) {
  std::vector<double> x(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) x[i] = giwa::convert<double>{}(row[i]);
  return x;
}

}  // namespace giwa_test

#endif
