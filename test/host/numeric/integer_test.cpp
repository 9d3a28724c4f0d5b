// SPDX-License-Identifier: MIT
// Integer arithmetic against 128-bit arithmetic, and division by a fast_divisor against division.
#include <giwa/numeric/fast_division.hpp>
#include <giwa/numeric/integer.hpp>

#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::ceil_div;
using giwa::fast_divisor;
using giwa::int64;
using giwa::max_int64;
using giwa::multiply_high;
using giwa::uint32;
using giwa::uint64;

namespace {

using wide = __int128;
using unsigned_wide = unsigned __int128;

static_assert(ceil_div(7, 2) == 4 && giwa::round_up(7, 4) == 8 && ceil_div(max_int64, 2) == int64{1} << 62);
static_assert(multiply_high(~uint64{0}, ~uint64{0}) == ~uint64{0} - 1);
static_assert(int64{100} / fast_divisor(7) == 14, "a fast_divisor works in constant expressions");

// Saturating sums and products end at the largest number.
using giwa::detail::saturating_product, giwa::detail::saturating_sum;
constexpr int64 most = max_int64;
static_assert(saturating_sum(most, most) == most && saturating_sum(most, int64{1}) == most);
static_assert(saturating_sum(most - 5, int64{5}) == most && saturating_sum(most - 5, int64{4}) == most - 1);
static_assert(saturating_sum(int64{0}, most) == most && saturating_sum(int64{2}, int64{3}) == 5);
static_assert(saturating_product(most, most) == most && saturating_product(most, 0) == 0);
static_assert(saturating_product(most / 3, 3) == most - most % 3 && saturating_product(most / 3 + 1, 3) == most);
constexpr int top = 2147483647;
static_assert(saturating_sum(top, 1) == top && saturating_sum(-top - 1, -1) == -top);
static_assert(saturating_sum(-top, -1) == -top && saturating_sum(-top - 1, 1) == -top);
static_assert(saturating_sum(top, -1) == top - 1 && saturating_sum(2, 3) == 5);

// Both against n / d rounded up in 128 bits; round_up where the result fits.
template <class T>
bool rounds_up(T n, T d) {
  const wide groups = (static_cast<wide>(n) + static_cast<wide>(d) - 1) / static_cast<wide>(d);
  const wide covered = groups * static_cast<wide>(d);
  const bool fits = covered <= static_cast<wide>(std::numeric_limits<T>::max());
  return static_cast<wide>(ceil_div(n, d)) == groups && (!fits || static_cast<wide>(giwa::round_up(n, d)) == covered);
}

}  // namespace

TEMPLATE_TEST_CASE("ceil_div and round_up for all 8-bit numbers", "", signed char, unsigned char) {
  for (int n = 0; n <= std::numeric_limits<TestType>::max(); ++n)
    for (int d = 1; d <= std::numeric_limits<TestType>::max(); ++d)
      REQUIRE(rounds_up(static_cast<TestType>(n), static_cast<TestType>(d)));
}

TEST_CASE("ceil_div and round_up up to the largest 64-bit numbers") {
  for (const int64 n : giwa_test::edges())
    for (const int64 d : giwa_test::edges()) {
      if (d == 0) continue;
      CAPTURE(n, d);
      REQUIRE(rounds_up(n, d));
      REQUIRE(rounds_up(2 * static_cast<uint64>(n) + 1, 2 * static_cast<uint64>(d) - 1));
    }
}

TEST_CASE("is_power_of_two") {
  for (int n = -70000; n < 70000; ++n) REQUIRE(giwa::is_power_of_two(n) == (n > 0 && __builtin_popcount(n) == 1));
  for (const int64 n : giwa_test::edges()) {
    REQUIRE(giwa::is_power_of_two(n) == (__builtin_popcountll(static_cast<uint64>(n)) == 1));
    REQUIRE_FALSE(giwa::is_power_of_two(-n - 1));
  }
  CHECK(giwa::is_power_of_two(uint64{1} << 63));
  CHECK_FALSE(giwa::is_power_of_two(~uint64{0}));
}

TEST_CASE("product_overflows against 128-bit products") {
  const auto right = [](int64 a, int64 b) {
    return giwa::product_overflows(a, b) == (static_cast<wide>(a) * b > max_int64);
  };
  for (const int64 a : giwa_test::edges())
    for (const int64 b : giwa_test::edges()) {
      CAPTURE(a, b);
      REQUIRE(right(a, b));
    }
  giwa_test::random_sequence random(1);
  for (int i = 0; i < 200000; ++i) {
    const int64 a = random.any_magnitude(), b = random.any_magnitude();
    if (!right(a, b) || (a > 0 && (!right(a, max_int64 / a) || (a > 1 && !right(a, max_int64 / a + 1))))) {
      CAPTURE(a, b);
      REQUIRE(false);
    }
  }
}

TEST_CASE("multiply_high against 128-bit products") {
  const auto high = [](uint64 a, uint64 b) { return static_cast<uint64>(static_cast<unsigned_wide>(a) * b >> 64); };
  for (const int64 a : giwa_test::edges())
    for (const int64 b : giwa_test::edges())
      for (const uint64 x : {static_cast<uint64>(a), ~static_cast<uint64>(a)})
        for (const uint64 y : {static_cast<uint64>(b), ~static_cast<uint64>(b)}) {
          if (multiply_high(x, y) == high(x, y)) continue;
          CAPTURE(x, y);
          REQUIRE(false);
        }
  giwa_test::random_sequence random(2);
  for (int i = 0; i < 1000000; ++i) {
    const uint64 a = random.bits(), b = random.bits();
    const auto a32 = static_cast<uint32>(a), b32 = static_cast<uint32>(b);
    if (multiply_high(a, b) == high(a, b) && multiply_high(a32, b32) == static_cast<uint64>(a32) * b32 >> 32) continue;
    CAPTURE(a, b);
    REQUIRE(false);
  }
}

TEST_CASE("a fast_divisor divides as the operator does") {
  // Where a wrong multiplier shows first: just below, at and above multiples of the divisor.
  const auto right = [](int64 n, const fast_divisor& d) { return n / d == n / d.divisor(); };
  const auto right_around = [&](int64 n, const fast_divisor& d) {
    const int64 multiple = n / d.divisor() * d.divisor();
    return right(n, d) && right(multiple, d) && (multiple == 0 || right(multiple - 1, d)) &&
           (multiple == max_int64 || right(multiple + 1, d));
  };
  SECTION("edges") {
    std::vector<int64> divisors = giwa_test::edges();
    for (int64 d = 1; d < 1000; ++d) divisors.push_back(d);
    for (const int64 d : divisors) {
      if (d == 0) continue;
      const fast_divisor divisor(d);
      REQUIRE(divisor.divisor() == d);
      for (const int64 n : giwa_test::edges()) {
        if (right_around(n, divisor)) continue;
        CAPTURE(n, d);
        REQUIRE(false);
      }
    }
  }
  SECTION("small numbers, all of them") {
    for (int64 d = 1; d <= 300; ++d) {
      const fast_divisor divisor(d);
      for (int64 n = 0; n <= 3000; ++n) REQUIRE((right(n, divisor) && right(max_int64 - n, divisor)));
    }
  }
  SECTION("a million random pairs") {
    giwa_test::random_sequence random(3);
    for (int i = 0; i < 1000000; ++i) {
      const int64 n = random.any_magnitude(), d = random.any_magnitude();
      if (d == 0 || right_around(n, fast_divisor(d))) continue;
      CAPTURE(n, d);
      REQUIRE(false);
    }
  }
  SECTION("a default one divides by 1") {
    for (const int64 n : giwa_test::edges()) REQUIRE(n / fast_divisor{} == n);
    CHECK(fast_divisor{}.divisor() == 1);
  }
}
