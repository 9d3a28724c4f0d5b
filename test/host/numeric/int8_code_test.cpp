// SPDX-License-Identifier: MIT
// int8_code: all 256 values, ties, limits, NaN, and conversions from and to the other types with one rounding.
#include <giwa/numeric/int8_code.hpp>

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::convert;
using giwa::int8_code;

namespace {

static_assert(sizeof(int8_code) == 1 && std::is_trivially_copyable_v<int8_code> &&
              std::is_trivially_default_constructible_v<int8_code>);
static_assert(giwa::floating_format<int8_code> && !giwa::floating_element<int8_code>);
static_assert(!std::is_convertible_v<float, int8_code> && !std::is_convertible_v<int8_code, float>);
static_assert(int8_code(127.4f).bits() == 127 && int8_code(-1.0).bits() == 0xff && int8_code(-1e30f).bits() == 0x81);
static_assert(static_cast<float>(int8_code::from_bits(0x80)) == -128 && int8_code(0.5).bits() == 0);

int value_of(int8_code x) { return static_cast<signed char>(x.bits()); }

template <class From>
int nearest(From x) {
  if (std::isnan(x)) return 0;
  const double limited = std::fmin(std::fmax(static_cast<double>(x), -127), 127);
  return static_cast<int>(std::nearbyint(limited));  // ties to even, as the program begins
}
template <class From>
bool rounds_right(From x) {
  return value_of(int8_code(x)) == nearest(x) && value_of(convert<int8_code>{}(x)) == nearest(x);
}

}  // namespace

TEST_CASE("all integers of 8 bits have their value in every type, and come back") {
  for (int bits = 0; bits < 256; ++bits) {
    const int8_code x = int8_code::from_bits(static_cast<unsigned char>(bits));
    const int value = static_cast<signed char>(bits);
    CHECK(x.bits() == bits);
    CHECK(static_cast<float>(x) == static_cast<float>(value));
    CHECK(static_cast<double>(x) == value);
    CHECK(convert<float>{}(convert<giwa::fp16>{}(x)) == static_cast<float>(value));
    CHECK(convert<float>{}(convert<giwa::bf16>{}(x)) == static_cast<float>(value));
    CHECK(value_of(int8_code(static_cast<float>(value))) == (value == -128 ? -127 : value));
  }
}

TEST_CASE("numbers round to the nearest integer, ties to even, within 127") {
  for (int i = -2 * 130; i <= 2 * 130; ++i) {
    const double x = i / 2.0;
    CHECK(rounds_right(x));
    CHECK(rounds_right(static_cast<float>(x)));
    for (const double towards : {-1e9, 1e9}) {
      CHECK(rounds_right(std::nextafter(x, towards)));
      CHECK(rounds_right(std::nextafter(static_cast<float>(x), static_cast<float>(towards))));
    }
  }
  for (const double x : {0.0, -0.0, 1e-300, 1e300, -1e300, std::numeric_limits<double>::infinity(),
                         -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(rounds_right(x));
    CHECK(rounds_right(static_cast<float>(x)));
  }
  giwa_test::random_sequence random(8);
  for (int i = 0; i < 100000; ++i) CHECK(rounds_right(std::bit_cast<float>(static_cast<giwa::uint32>(random.bits()))));
}
