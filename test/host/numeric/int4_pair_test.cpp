// SPDX-License-Identifier: MIT
// int4_pair: all bytes, ties, limits and NaN.
#include <giwa/numeric/int4_pair.hpp>

#include <bit>
#include <cmath>
#include <type_traits>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::int4_pair;

namespace {

static_assert(sizeof(int4_pair) == 1 && std::is_trivially_copyable_v<int4_pair> &&
              std::is_trivially_default_constructible_v<int4_pair>);
static_assert(giwa::floating_format<int4_pair> && !giwa::floating_element<int4_pair>);
static_assert(!std::is_convertible_v<float, int4_pair>);
static_assert(int4_pair(1, -2).bits() == 0xe1 && int4_pair(0.0f).bits() == 0 && int4_pair(-9, 9).bits() == 0x79);
static_assert(int4_pair::from_bits(0x8f)[0] == -1 && int4_pair::from_bits(0x8f)[1] == -8);

float nearest(float x) {
  return std::isnan(x) ? 0 : std::nearbyint(std::fmin(std::fmax(x, -7.0f), 7.0f));  // ties to even
}
bool rounds_right(float x) {
  const int4_pair both(x), first(x, 3), second(-5, x);
  return both[0] == nearest(x) && both[1] == nearest(x) && first[0] == nearest(x) && first[1] == 3 && second[0] == -5 &&
         second[1] == nearest(x);
}

}  // namespace

TEST_CASE("all pairs of 4-bit integers have their values, and come back but for -8") {
  for (int bits = 0; bits < 256; ++bits) {
    const int4_pair x = int4_pair::from_bits(static_cast<unsigned char>(bits));
    const auto value = [](int nibble) { return static_cast<float>(nibble < 8 ? nibble : nibble - 16); };
    CHECK(x.bits() == bits);
    CHECK(x[0] == value(bits % 16));
    CHECK(x[1] == value(bits / 16));
    if (x[0] != -8 && x[1] != -8) CHECK(int4_pair(x[0], x[1]).bits() == bits);
  }
}

TEST_CASE("numbers round to the nearest integer, ties to even, within 7") {
  for (int i = -20; i <= 20; ++i)
    for (const float towards : {-1e9f, 1e9f}) {
      CHECK(rounds_right(static_cast<float>(i) / 2));
      CHECK(rounds_right(std::nextafter(static_cast<float>(i) / 2, towards)));
    }
  for (const float x : {-0.0f, INFINITY, -INFINITY, NAN, 1e38f, 0x1p-149f}) CHECK(rounds_right(x));
  giwa_test::random_sequence random(4);
  for (int i = 0; i < 100000; ++i) CHECK(rounds_right(std::bit_cast<float>(static_cast<giwa::uint32>(random.bits()))));
}
