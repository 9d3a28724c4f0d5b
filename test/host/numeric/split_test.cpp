// SPDX-License-Identifier: MIT
// fp32 numbers as sums of two fp16 numbers: their error, and the power of two that scales numbers into the best range.
#include <giwa/numeric/split.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::power_of_two_for;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float largest_float = std::numeric_limits<float>::max();
constexpr float smallest_float = std::numeric_limits<float>::denorm_min();

double value(giwa::fp16 x) { return giwa::convert<double>{}(x); }

// Whether the error of the split is within its bound, and lo is at most half a unit of hi, as the kernels assume.
bool split_is_accurate(float x) {
  const giwa::split_fp16 p = giwa::split(x);
  const double exact = static_cast<double>(x), size = std::abs(exact);
  return std::abs(exact - value(p.hi) - value(p.lo)) <= std::max(0x1p-22 * size, 0x1p-25) &&
         std::abs(value(p.lo)) <= std::max(0x1p-11 * size, 0x1p-25);
}

// What the power promises of numbers up to `largest`, of which x is one.
bool power_fits(float largest, float x) {
  const float power = power_of_two_for(largest);
  int exponent = 0;
  if (std::frexp(power, &exponent) != 0.5f || !std::isnormal(power) || !std::isnormal(1 / power)) return false;
  const float scaled = largest * power;
  if (!(scaled < 0x1p15f) || !(scaled >= 0x1p14f || power == 0x1p126f)) return false;
  const giwa::split_fp16 p = giwa::split(x * power);
  const double back = (value(p.hi) + value(p.lo)) / static_cast<double>(power), exact = static_cast<double>(x);
  return std::abs(back - exact) <= std::max(0x1p-22 * std::abs(exact), 0x1p-39 * static_cast<double>(largest));
}

}  // namespace

TEST_CASE("the error of a split number is within its bound") {
  giwa_test::random_sequence random(2026);
  for (int exponent = -149; exponent < 15; ++exponent)
    for (int i = 0; i < 2000; ++i) {
      const float x = std::ldexp(1 + static_cast<float>(random.below(1 << 23)) * 0x1p-23f, exponent);
      CAPTURE(exponent, x);
      REQUIRE((split_is_accurate(x) && split_is_accurate(-x)));
    }
  for (const float x : {0.0f, 1.0f, 0x1.ffcp14f, 0x1.ffffffp14f, 65504.0f, 65519.0f, smallest_float, 0x1p-24f, 0x1p-25f,
                        0x1.8p-25f, 0x1p-14f, 0x1.001p0f, 0x1.002p0f, 0x1.003p0f, 0x1.ffep0f, 0x1.ffffffp0f})
    REQUIRE((split_is_accurate(x) && split_is_accurate(-x)));
}

TEST_CASE("integers below 2^22 are split exactly") {
  for (int i = 0; i < 65504; ++i) {  // the integer itself, and as many in the finest steps
    const giwa::split_fp16 p = giwa::split(static_cast<float>(i));
    REQUIRE(value(p.hi) + value(p.lo) == i);
  }
  giwa_test::random_sequence random(1);
  for (int i = 0; i < 100000; ++i) {
    const float x = std::ldexp(static_cast<float>(random.below(1 << 22)), -8);  // below 2^14, in steps of 2^-8
    const giwa::split_fp16 p = giwa::split(x);
    REQUIRE(value(p.hi) + value(p.lo) == static_cast<double>(x));
  }
}

TEST_CASE("power_of_two_for scales numbers of every exponent into the range in which split loses least") {
  giwa_test::random_sequence random(7);
  for (unsigned exponent = 0; exponent < 255; ++exponent)
    for (int i = 0; i < 200; ++i) {
      const auto fraction = [&] {
        return i == 0 ? 0u : i == 1 ? (1u << 23) - 1 : static_cast<unsigned>(random.below(1 << 23));
      };
      const float largest = std::bit_cast<float>(exponent << 23 | fraction());
      if (largest == 0) continue;
      const float x = std::min(std::ldexp(largest, -static_cast<int>(random.below(45))),
                               std::bit_cast<float>(exponent << 23 | fraction()));
      CAPTURE(exponent, largest, x);
      REQUIRE((power_fits(largest, largest) && power_fits(largest, -largest) && power_fits(largest, x)));
    }
  for (const float largest : {smallest_float, 0x1p-126f, std::nextafter(0x1p-126f, 0.0f), 1.0f, largest_float})
    REQUIRE(power_fits(largest, largest));
  for (int n = -126; n < 128; ++n) REQUIRE(giwa::power_of_two(n) == std::ldexp(1.0f, n));
  static_assert(giwa::exponent_for(1) == -14 && giwa::exponent_for(largest_float) == 113);
  static_assert(power_of_two_for(1) == 0x1p14f && power_of_two_for(0x1.8p14f) == 1 && power_of_two_for(0) == 1);
  static_assert(power_of_two_for(largest_float) == 0x1p-113f && power_of_two_for(smallest_float) == 0x1p126f);
}

TEST_CASE("infinity and NaN stay non-finite in hi") {
  CHECK(std::isnan(value(giwa::split(std::nanf("")).hi)));
  for (const float x : {infinity, -infinity}) {
    CHECK(value(giwa::split(x).hi) == static_cast<double>(x));
    CHECK(std::isnan(value(giwa::split(x).lo)));  // infinity - infinity
  }
  CHECK(power_of_two_for(std::nanf("")) == 1);
  CHECK((std::isnormal(power_of_two_for(infinity)) && std::isnormal(1 / power_of_two_for(infinity))));
}
