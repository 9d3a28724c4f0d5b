// SPDX-License-Identifier: MIT
// e4m3: all 256 values both ways, ties, saturation, and conversions from and to the other types with one rounding.
#include <giwa/numeric/fp8.hpp>

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::convert;
using giwa::e4m3;

namespace {

static_assert(sizeof(e4m3) == 1 && std::is_trivially_copyable_v<e4m3> &&
              std::is_trivially_default_constructible_v<e4m3>);
static_assert(giwa::floating_format<e4m3> && !giwa::floating_element<e4m3> && giwa::floating_element<giwa::fp16>);
static_assert(!std::is_convertible_v<float, e4m3> && !std::is_convertible_v<e4m3, float>);
static_assert(giwa::precision_of<e4m3>::significand_bits == 4);
static_assert(e4m3(448.0f).bits() == 0x7e && e4m3(-448.0).bits() == 0xfe && e4m3(1.0f).bits() == 0x38);
static_assert(static_cast<float>(e4m3::from_bits(0x01)) == 0x1p-9f &&
              static_cast<double>(e4m3::from_bits(0x7e)) == 448);

// What 8 bits mean: sign, 4 bits of exponent with a bias of 7, 3 bits of fraction.
double meaning(int bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return bits & 0x80 ? -size : size;
}

// The nearest value by search, the even one of two, the largest for all beyond it.
int nearest(double x) {
  if (std::isnan(x)) return 0x7f;
  int best = 0;
  double distance = std::abs(x);
  for (int bits = 1; bits < 0x7f; ++bits) {
    const double own = std::abs(std::abs(x) - meaning(bits));
    if (own < distance || (own == distance && bits % 2 == 0)) best = bits, distance = own;
  }
  if (std::isinf(x)) best = 0x7e;
  return best | (std::signbit(x) ? 0x80 : 0);
}

template <class From>
bool rounds_right(From x) {
  return e4m3(x).bits() == nearest(static_cast<double>(x)) && convert<e4m3>{}(x).bits() == e4m3(x).bits();
}

template <class Wide>
bool same_number(Wide got, double expected) {
  const auto wide = static_cast<double>(got);
  return std::isnan(expected) ? std::isnan(wide) : wide == expected && std::signbit(wide) == std::signbit(expected);
}

}  // namespace

TEST_CASE("e4m3 means what it should, all 256 of them, in every type") {
  for (int i = 0; i < 256; ++i) {
    const e4m3 x = e4m3::from_bits(static_cast<unsigned char>(i));
    const double expected = meaning(i);
    CAPTURE(i, expected);
    REQUIRE(x.bits() == i);
    CHECK(same_number(static_cast<float>(x), expected));
    CHECK(same_number(static_cast<double>(x), expected));
    CHECK(same_number(convert<float>{}(x), expected));
    CHECK(same_number(convert<double>{}(x), expected));
    CHECK(same_number(convert<double>{}(convert<giwa::fp16>{}(x)), expected));  // fp16 and bf16 hold all of them
    CHECK(same_number(convert<double>{}(convert<giwa::bf16>{}(x)), expected));
    CHECK(convert<e4m3>{}(x).bits() == i);
    const int back = std::isnan(expected) ? 0x7f : i;
    CHECK(e4m3(static_cast<float>(x)).bits() == back);
    CHECK(e4m3(static_cast<double>(x)).bits() == back);
    CHECK(convert<e4m3>{}(convert<giwa::fp16>{}(x)).bits() == back);
    CHECK(convert<e4m3>{}(convert<giwa::bf16>{}(x)).bits() == back);
  }
}

TEST_CASE("numbers round to the nearest e4m3, ties to even, at every boundary") {
  for (int i = 0; i < 0x7e; ++i) {
    const double middle = (meaning(i) + meaning(i + 1)) / 2;  // exact in fp32 too
    const auto narrow = static_cast<float>(middle);
    CAPTURE(i, middle);
    REQUIRE(static_cast<double>(narrow) == middle);
    CHECK(e4m3(middle).bits() == i + i % 2);
    for (const double sign : {1.0, -1.0}) {
      const auto s = static_cast<float>(sign);
      CHECK(rounds_right(sign * middle));
      CHECK(rounds_right(sign * std::nextafter(middle, 1e3)));
      CHECK(rounds_right(sign * std::nextafter(middle, 0.0)));
      CHECK(rounds_right(s * narrow));
      CHECK(rounds_right(s * std::nextafter(narrow, 1e3f)));
      CHECK(rounds_right(s * std::nextafter(narrow, 0.0f)));
    }
  }
}

TEST_CASE("beyond the largest e4m3 numbers saturate, NaN stays NaN, and the smallest become zero with their sign") {
  using single = std::numeric_limits<float>;
  using wide = std::numeric_limits<double>;
  for (const float x :
       {449.0f, 463.9f, 464.0f, 464.1f, 480.0f, 496.0f, 512.0f, 1e5f, single::max(), single::infinity()}) {
    CAPTURE(x);
    CHECK(e4m3(x).bits() == 0x7e);
    CHECK(e4m3(-x).bits() == 0xfe);
    CHECK(e4m3(static_cast<double>(x)).bits() == 0x7e);
  }
  CHECK(e4m3(wide::max()).bits() == 0x7e);
  CHECK(e4m3(-wide::infinity()).bits() == 0xfe);
  CHECK(convert<e4m3>{}(convert<giwa::fp16>{}(single::infinity())).bits() == 0x7e);
  for (const float x : {single::quiet_NaN(), single::signaling_NaN(), -single::quiet_NaN()}) {
    CHECK(e4m3(x).bits() == 0x7f);
    CHECK(e4m3(static_cast<double>(x)).bits() == 0x7f);
    CHECK(convert<e4m3>{}(convert<giwa::bf16>{}(x)).bits() == 0x7f);
  }
  for (const float x : {0.0f, single::denorm_min(), single::min(), 0x1p-11f, 0x1p-10f}) {
    CAPTURE(x);
    CHECK(e4m3(x).bits() == 0);
    CHECK(e4m3(-x).bits() == 0x80);
  }
  CHECK(e4m3(wide::denorm_min()).bits() == 0);
  CHECK(e4m3(std::nextafter(0x1p-10, 1.0)).bits() == 1);  // fp32 would make it a tie first
  CHECK(convert<e4m3>{}(std::nextafter(0x1p-10, 1.0)).bits() == 1);
}

TEST_CASE("random numbers of all magnitudes round to the nearest e4m3") {
  giwa_test::random_sequence random(3);
  for (int i = 0; i < 100000; ++i) {
    const auto bits = random.bits();
    const auto any = std::bit_cast<float>(static_cast<unsigned>(bits));
    const auto in_range = std::ldexp(std::bit_cast<float>(static_cast<unsigned>(bits & 0x807fffff) | 127u << 23),
                                     static_cast<int>(bits >> 32 & 31) - 14);
    const auto wide = std::bit_cast<double>(bits);
    CAPTURE(any, in_range, wide);
    REQUIRE(rounds_right(any));
    REQUIRE(rounds_right(in_range));
    REQUIRE(rounds_right(wide));
    REQUIRE(rounds_right(static_cast<double>(in_range) * (1 + 0x1p-40)));
  }
}
