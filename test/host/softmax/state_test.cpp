// SPDX-License-Identifier: MIT
// The laws of the softmax state over hostile values, and its exponential and logarithm.
#include <giwa/softmax/grouped_sum.hpp>
#include <giwa/softmax/state.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {

template <class T>
using state = giwa::softmax_state<T>;

template <class T>
constexpr T inf = std::numeric_limits<T>::infinity();
template <class T>
constexpr T eps = std::numeric_limits<T>::epsilon();

template <class T>
bool same(T a, T b) {
  return (std::isnan(a) && std::isnan(b)) || a == b;
}
template <class T>
bool same(const state<T>& a, const state<T>& b) {
  return same(a.max, b.max) && same(a.sum, b.sum);
}
template <class T>
bool close(T a, T b, T units) {
  return same(a, b) || std::abs(a - b) <= units * eps<T> * std::max(std::abs(a), std::abs(b));
}
template <class T>
bool close(const state<T>& a, const state<T>& b, T units) {
  return same(a.max, b.max) && close(a.sum, b.sum, units);
}

template <class T>
std::vector<T> hostile() {
  const T huge = std::numeric_limits<T>::max(), tiny = std::numeric_limits<T>::denorm_min();
  return {-inf<T>, inf<T>,   std::numeric_limits<T>::quiet_NaN(),
          huge,    -huge,    huge / 2,
          tiny,    -tiny,    T(0),
          T(-0.0), T(1),     T(-1),
          T(87.5), T(-87.5), T(88),
          T(-104), T(709),   T(-745),
          T(1e4),  T(-1e4),  T(0.3)};
}

// The identity, states of one element, and states of several.
template <class T>
std::vector<state<T>> states() {
  std::vector<state<T>> all{{}};
  for (const T x : hostile<T>()) all.push_back(state<T>::of(x));
  const std::size_t single = all.size();
  for (std::size_t i = 0; i < single; i += 2)
    for (std::size_t j = 1; j < single; j += 3) all.push_back(state<T>::merge(all[i], all[j]));
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("the identity is neutral, exactly, on both sides", "", float, double) {
  for (const auto& s : states<TestType>()) {
    CAPTURE(s.max, s.sum);
    CHECK(same(state<TestType>::merge(s, {}), s));
    CHECK(same(state<TestType>::merge({}, s), s));
  }
}

TEMPLATE_TEST_CASE("merging commutes exactly and associates to rounding", "", float, double) {
  const auto all = states<TestType>();
  int wrong = 0;
  for (const auto& a : all)
    for (const auto& b : all) {
      const auto ab = state<TestType>::merge(a, b);
      wrong += same(ab, state<TestType>::merge(b, a)) ? 0 : 1;
      for (std::size_t c = 0; c < all.size(); c += 2)
        wrong += close(state<TestType>::merge(ab, all[c]), state<TestType>::merge(a, state<TestType>::merge(b, all[c])),
                       TestType(8))
                     ? 0
                     : 1;
    }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("empty, masked, infinite and undefined rows", "", float, double) {
  using s = state<TestType>;
  constexpr TestType nan = std::numeric_limits<TestType>::quiet_NaN();
  constexpr s empty{};
  static_assert(empty.max == -inf<TestType> && empty.sum == 0 && empty.lse() == -inf<TestType>);
  static_assert(empty.normalizer() == 0 && empty.reference() == 0);
  CHECK(same(s::of(-inf<TestType>), empty));
  CHECK(same(s::merge(s::of(-inf<TestType>), empty), empty));
  CHECK(same(s::of(TestType(-7)), s{TestType(-7), 1}));
  CHECK(s::of(TestType(-7)).lse() == TestType(-7));
  for (const TestType bad : {nan, inf<TestType>}) {
    CHECK(std::isnan(s::of(bad).sum));
    CHECK(std::isnan(s::of(bad).lse()));
    CHECK(std::isnan(s::of(bad).normalizer()));
    for (const TestType x : hostile<TestType>()) {
      CHECK(std::isnan(s::merge(s::of(bad), s::of(x)).sum));
      CHECK(std::isnan(s::merge(s::of(x), s::of(bad)).lse()));
    }
  }
  CHECK(s::of(inf<TestType>).max == inf<TestType>);
  CHECK(s::of(nan).max == -inf<TestType>);  // max ignores NaN
}

TEMPLATE_TEST_CASE("a row merges in any order and grouping", "", float, double) {
  giwa_test::random_sequence random(3);
  for (const double scale : {1.0, 50.0, 1e6}) {
    for (int size = 1; size <= 200; size += 13) {
      std::vector<TestType> x;
      long double max = -1e300L, sum = 0;
      for (int i = 0; i < size; ++i) {
        x.push_back(static_cast<TestType>(scale * (static_cast<double>(random.below(2'000'001)) * 1e-6 - 1)));
        max = std::max<long double>(max, x.back());
      }
      for (const TestType v : x) sum += std::exp(static_cast<long double>(v) - max);
      // element by element, and as a random tree
      state<TestType> line;
      for (const TestType v : x) line = state<TestType>::merge(line, state<TestType>::of(v));
      std::vector<state<TestType>> parts;
      for (const TestType v : x) parts.push_back(state<TestType>::of(v));
      while (parts.size() > 1) {
        const auto i = static_cast<std::size_t>(random.below(static_cast<giwa::int64>(parts.size()) - 1));
        parts[i] = state<TestType>::merge(parts[i], parts[i + 1]);
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
      CAPTURE(scale, size);
      for (const auto& s : {line, parts[0]}) {
        CHECK(s.max == static_cast<TestType>(max));
        CHECK(close(s.sum, static_cast<TestType>(sum), TestType(2 * size + 4)));
        CHECK(close(s.lse(), static_cast<TestType>(max + std::log(sum)), TestType(size + 4)));
      }
    }
  }
}

namespace {

/// The state of `tiles` tiles in groups of 16, and in a plain loop in long double. `rising`: each tile has a larger maximum.
template <int Levels, int Stride, class T>
void check_grouped(int tiles, bool rising) {
  using groups = giwa::detail::grouped_sum<T, giwa::exponential, Levels>;
  const T poison = std::numeric_limits<T>::quiet_NaN();
  std::vector<giwa::detail::group_state<T>> memory(groups::levels_in_memory * Stride, {poison, poison});
  groups all(memory.data(), Stride);
  long double sum = 0;
  T max = -inf<T>;
  for (int i = 0; i < tiles; ++i) {
    const T largest = rising ? T(i) / 64 : T(1);
    sum = sum * (i == 0 ? 0 : std::exp(static_cast<long double>(max) - largest)) + 1 + i % 3;
    max = largest;
    all.add({largest, T(1 + i % 3)});
    CHECK(all.max() == max);
  }
  const state<T> s = all.total();
  CAPTURE(Levels, tiles, rising, s.sum);
  CHECK(s.max == max);
  CHECK(close(s.sum, static_cast<T>(sum), T(64)));
}

}  // namespace

TEMPLATE_TEST_CASE("groups of tiles add up on every level, at its ends and beside them", "", float, double) {
  for (const int tiles : {0, 1, 15, 16, 17, 31, 32, 255, 256, 257, 271, 272, 273, 511, 512, 4095, 4096, 4097, 8200})
    for (const bool rising : {false, true}) {
      check_grouped<2, 1, TestType>(tiles, rising);
      check_grouped<3, 1, TestType>(tiles, rising);
      check_grouped<3, 5, TestType>(tiles, rising);
      check_grouped<4, 1, TestType>(tiles, rising);
    }
}

TEMPLATE_TEST_CASE("rescaling keeps the log-sum-exp", "", float, double) {
  using s = state<TestType>;
  const s a = s::merge(s::of(TestType(1)), s::of(TestType(2)));
  const s b = a.rescale(TestType(5));
  CHECK(b.max == 5);
  CHECK(close(b.lse(), a.lse(), TestType(4)));
  CHECK(same(a.rescale(a.max), a));
  CHECK(same(s{}.rescale(-inf<TestType>), s{}));
  CHECK(s{}.rescale(TestType(5)).sum == 0);
}

TEMPLATE_TEST_CASE("the exponential is within 1.5 units in the last place", "", float, double) {
  const giwa::exponential exp;
  static_assert(giwa::exponential{}(TestType(0)) == 1);
  CHECK(exp(TestType(-0.0)) == 1);
  CHECK(exp(-inf<TestType>) == 0);
  CHECK(exp(-std::numeric_limits<TestType>::max()) == 0);
  CHECK(std::isnan(exp(std::numeric_limits<TestType>::quiet_NaN())));
  const double lowest = std::is_same_v<TestType, float> ? -87.0 : -708.0;
  double worst = 0;
  for (int i = 0; i <= 200'000; ++i) {
    const auto d = static_cast<TestType>(lowest * i / 200'000);
    const long double truth = std::exp(static_cast<long double>(d));
    worst =
        std::max(worst, static_cast<double>(std::abs((exp(d) - truth) / truth)) / static_cast<double>(eps<TestType>));
  }
  CHECK(worst < 1.5);
  CHECK(worst > 0.2);
  CHECK(exp(static_cast<TestType>(lowest * 1.001)) == 0);
}

TEMPLATE_TEST_CASE("the natural logarithm is within 2 units in the last place", "", float, double) {
  const giwa::natural_log log;
  static_assert(giwa::natural_log{}(TestType(1)) == 0);
  CHECK(log(TestType(0)) == -inf<TestType>);
  CHECK(log(inf<TestType>) == inf<TestType>);
  CHECK(std::isnan(log(TestType(-1))));
  CHECK(std::isnan(log(std::numeric_limits<TestType>::quiet_NaN())));
  double worst = 0;
  for (int i = 1; i <= 100'000; ++i)
    for (const double scale : {1e-5, 1.0, 1e6}) {
      const auto x = static_cast<TestType>(scale * i);
      const long double truth = std::log(static_cast<long double>(x));
      if (truth == 0) continue;
      worst =
          std::max(worst, static_cast<double>(std::abs((log(x) - truth) / truth)) / static_cast<double>(eps<TestType>));
    }
  CHECK(worst < 2);
}
