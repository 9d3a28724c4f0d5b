// SPDX-License-Identifier: MIT
// Conversions between fp64, fp32, fp16 and bf16: exact upwards; downwards to the nearest value, ties to even, once.
#include <giwa/numeric/precision.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::bf16;
using giwa::convert;
using giwa::fp16;

namespace {

static_assert(giwa::floating_element<bf16> && !giwa::floating_element<int>);

template <class T>
T from_bits(unsigned short bits) {
  return std::bit_cast<T>(bits);
}
template <class T>
unsigned short bits_of(T x) {
  return std::bit_cast<unsigned short>(x);
}

// What 16 bits mean: sign, exponent and fraction (IEEE 754, 3.4); fp16 has 10 bits of fraction, bf16 has 7.
template <class T>
double meaning(unsigned short bits) {
  constexpr int fraction_bits = std::is_same_v<T, fp16> ? 10 : 7, exponent_bits = 15 - fraction_bits;
  constexpr int bias = (1 << (exponent_bits - 1)) - 1, last_exponent = (1 << exponent_bits) - 1;
  const int fraction = bits & ((1 << fraction_bits) - 1), exponent = (bits >> fraction_bits) & last_exponent;
  double value = 0;
  if (exponent == last_exponent)
    value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  else if (exponent == 0)
    value = std::ldexp(fraction, 1 - bias - fraction_bits);
  else
    value = std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  return bits >> 15 ? -value : value;
}

// The nearest value by search: magnitudes are in the order of their bits. Infinity stands where the next value would be.
template <class T>
unsigned short nearest(double x) {
  constexpr unsigned short infinity = std::is_same_v<T, fp16> ? 0x7c00 : 0x7f80;
  const double size = std::abs(x);
  const auto place = [](unsigned short bits) {
    return bits == infinity ? 2 * meaning<T>(infinity - 1) - meaning<T>(infinity - 2) : meaning<T>(bits);
  };
  unsigned short below = 0, above = infinity;
  while (above - below > 1) {
    const auto middle = static_cast<unsigned short>((below + above) / 2);
    (place(middle) <= size ? below : above) = middle;
  }
  // Differences of doubles: exact here, as both lie within a factor of two of size, or size is far beyond.
  const double to_below = size - place(below), to_above = place(above) - size;
  const bool up = to_above < to_below || (to_above == to_below && below % 2 == 1);
  return static_cast<unsigned short>((up ? above : below) | (std::signbit(x) ? 0x8000 : 0));
}

template <class T, class Wide>
bool rounds_right(Wide x) {
  return bits_of(convert<T>{}(x)) == nearest<T>(static_cast<double>(x));
}

}  // namespace

TEMPLATE_TEST_CASE("16 bits mean what they should, all of them", "", fp16, bf16) {
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<unsigned short>(i);
    const auto x = from_bits<TestType>(bits);
    const double expected = meaning<TestType>(bits);
    const float f = convert<float>{}(x);
    const double d = convert<double>{}(x);
    CAPTURE(bits);
    if (std::isnan(expected)) {
      REQUIRE((std::isnan(f) && std::isnan(d)));
      REQUIRE(std::isnan(meaning<TestType>(bits_of(convert<TestType>{}(f)))));
      REQUIRE(std::isnan(meaning<TestType>(bits_of(convert<TestType>{}(d)))));
    } else {
      REQUIRE((static_cast<double>(f) == expected && d == expected && std::signbit(f) == std::signbit(expected)));
      REQUIRE(bits_of(convert<TestType>{}(f)) == bits);  // and back
      REQUIRE(bits_of(convert<TestType>{}(d)) == bits);
    }
    REQUIRE(bits_of(convert<TestType>{}(x)) == bits);
  }
}

TEMPLATE_TEST_CASE("rounding is to the nearest, ties to even", "", fp16, bf16) {
  const int last = std::is_same_v<TestType, fp16> ? 0x7bff : 0x7f7f;  // the largest finite value
  for (int i = 0; i < last; ++i) {
    // The tie between two neighbours, and the floats and doubles next to it.
    const double tie =
        (meaning<TestType>(static_cast<unsigned short>(i)) + meaning<TestType>(static_cast<unsigned short>(i + 1))) / 2;
    const auto tie_float = static_cast<float>(tie);
    REQUIRE(static_cast<double>(tie_float) == tie);
    CAPTURE(i, tie);
    for (const float sign : {1.0f, -1.0f}) {
      REQUIRE(rounds_right<TestType>(sign * tie_float));
      REQUIRE(rounds_right<TestType>(sign * std::nextafter(tie_float, 0.0f)));
      REQUIRE(rounds_right<TestType>(sign * std::nextafter(tie_float, 1e38f)));
      REQUIRE(rounds_right<TestType>(static_cast<double>(sign) * tie));
      // A double this close to the tie becomes the tie as a float: rounding twice would go wrong.
      REQUIRE(rounds_right<TestType>(static_cast<double>(sign) * std::nextafter(tie, 0.0)));
      REQUIRE(rounds_right<TestType>(static_cast<double>(sign) * std::nextafter(tie, 1e300)));
    }
  }
  giwa_test::random_sequence random(1);
  for (int i = 0; i < 100000; ++i) {
    const double x = std::ldexp(static_cast<double>(random.below(1 << 30)), static_cast<int>(random.below(80)) - 70);
    REQUIRE((rounds_right<TestType>(x) && rounds_right<TestType>(-static_cast<float>(x))));
  }
}

TEMPLATE_TEST_CASE("beyond the largest value is infinity, NaN stays NaN", "", fp16, bf16) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto value = [](auto x) { return meaning<TestType>(bits_of(convert<TestType>{}(x))); };
  const double largest = meaning<TestType>(std::is_same_v<TestType, fp16> ? 0x7bff : 0x7f7f);
  const double limit = largest + (std::is_same_v<TestType, fp16> ? 16.0 : std::ldexp(1.0, 119));  // half a step more
  CHECK(value(largest) == largest);
  CHECK(value(std::nextafter(limit, 0.0)) == largest);
  CHECK(value(limit) == infinity);
  CHECK(value(-limit) == -infinity);
  CHECK(value(1e300) == infinity);
  CHECK(value(std::numeric_limits<float>::max()) == infinity);
  CHECK(value(-infinity) == -infinity);
  CHECK(value(-std::numeric_limits<float>::infinity()) == -infinity);
  CHECK(std::isnan(value(std::nan(""))));
  CHECK(std::isnan(value(std::nanf(""))));
  CHECK(value(1e-300) == 0);
  CHECK(std::signbit(value(-1e-300)));
}

TEST_CASE("between the 16-bit types, and between float and double") {
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<unsigned short>(i);
    const double binary16 = meaning<fp16>(bits), bfloat = meaning<bf16>(bits);
    if (!std::isnan(binary16) && !std::isinf(binary16))
      REQUIRE(bits_of(convert<bf16>{}(from_bits<fp16>(bits))) == nearest<bf16>(binary16));
    if (!std::isnan(bfloat) && !std::isinf(bfloat))
      REQUIRE(bits_of(convert<fp16>{}(from_bits<bf16>(bits))) == nearest<fp16>(bfloat));
  }
  CHECK(convert<float>{}(1.0 + 1e-10) == 1.0f);
  CHECK(convert<double>{}(0.1f) == static_cast<double>(0.1f));
  CHECK(convert<float>{}(0.1f) == 0.1f);
}

TEMPLATE_TEST_CASE("a packed pair has the first in the low half", "", fp16, bf16) {
  const auto pair = giwa::pack<TestType>(1.0f, -2.5f);
  CHECK(bits_of(pair.x) == nearest<TestType>(1.0));
  CHECK(bits_of(pair.y) == nearest<TestType>(-2.5));
  unsigned word = 0;
  static_assert(sizeof word == sizeof pair);
  std::memcpy(&word, &pair, sizeof word);
  CHECK(word == (unsigned{nearest<TestType>(-2.5)} << 16 | nearest<TestType>(1.0)));
}

TEST_CASE("the bits of each significand") {
  CHECK(giwa::precision_of<fp16>::significand_bits == 11);
  CHECK(giwa::precision_of<bf16>::significand_bits == 8);
  CHECK(giwa::precision_of<float>::significand_bits == std::numeric_limits<float>::digits);
  CHECK(giwa::precision_of<double>::significand_bits == std::numeric_limits<double>::digits);
}
