// SPDX-License-Identifier: MIT
// sin and cos of reduced range: their error against double precision, their symmetries, and arguments without a value.
#include <giwa/numeric/trigonometry.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "support/catch.hpp"

namespace {

using std::bit_cast;

constexpr float infinity = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

// The error of y in units in the last place of the exact value.
double units(float y, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::abs(static_cast<double>(y) - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

double worst(float from, float to, unsigned step) {
  double result = 0;
  for (unsigned bits = bit_cast<unsigned>(from); bits <= bit_cast<unsigned>(to); bits += step) {
    const float x = bit_cast<float>(bits);
    const double exact = static_cast<double>(x);
    result = std::max({result, units(giwa::sin(x), std::sin(exact)), units(giwa::cos(x), std::cos(exact))});
  }
  return result;
}

}  // namespace

TEST_CASE("sin and cos are near up to 1e5", "[trigonometry]") {
  CHECK(worst(0x1p-126f, 1e-3f, 9973) <= 1.6);
  CHECK(worst(1e-3f, 100, 101) <= 1.6);
  CHECK(worst(100, 1e5f, 97) <= 1.6);
  CHECK(worst(100, 1e5f, 97) >= 1.0);  // or the error is not measured
}

TEST_CASE("sin and cos of what lies nearest to a multiple of pi / 2", "[trigonometry]") {
  for (int n = 1; n < 63000; ++n) {
    const float x = static_cast<float>(n * 1.57079632679489661923);
    CAPTURE(n);
    for (const float near : {std::nextafter(x, 0.0f), x, std::nextafter(x, infinity)}) {
      const double exact = static_cast<double>(near);
      const double error = std::max(units(giwa::sin(near), std::sin(exact)), units(giwa::cos(near), std::cos(exact)));
      if (error > 1.6) CHECK(error <= 1.6);  // one assertion for each failure only
    }
  }
}

TEST_CASE("sin is odd and cos even", "[trigonometry]") {
  for (float x = 1e-30f; x < 1e5f; x *= 1.37f) {
    CAPTURE(x);
    CHECK(bit_cast<unsigned>(giwa::sin(-x)) == bit_cast<unsigned>(-giwa::sin(x)));
    CHECK(bit_cast<unsigned>(giwa::cos(-x)) == bit_cast<unsigned>(giwa::cos(x)));
  }
}

TEST_CASE("sin and cos of zero, subnormal numbers, infinity and NaN", "[trigonometry]") {
  CHECK(bit_cast<unsigned>(giwa::sin(0.0f)) == 0u);
  CHECK(bit_cast<unsigned>(giwa::sin(-0.0f)) == 0x80000000u);
  CHECK(giwa::cos(0.0f) == 1);
  const float least = std::numeric_limits<float>::denorm_min();
  CHECK(giwa::sin(least) == least);
  CHECK(giwa::sin(-least) == -least);
  CHECK(giwa::cos(least) == 1);
  for (const float x : {infinity, -infinity, not_a_number}) {
    CHECK(std::isnan(giwa::sin(x)));
    CHECK(std::isnan(giwa::cos(x)));
  }
}

TEST_CASE("a program with `using namespace giwa` keeps its own sin(float)", "[trigonometry]") {
  using namespace giwa;
  using namespace std;
  int differ = 0;
  for (float x = 0; x < 100; x += 0.01f) {
    CHECK(sin(x) == std::sin(x));
    differ += giwa::sin(x) != std::sin(x);
  }
  CHECK(differ > 0);  // or it would not matter which is called
}
