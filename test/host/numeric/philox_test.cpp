// SPDX-License-Identifier: MIT
// Philox: the known answers of its authors, another implementation, and what is to be expected of random numbers.
#include <giwa/numeric/philox.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::philox;
using giwa::random_words;
using giwa::uint32;
using giwa::uint64;

namespace {

static_assert(philox{0}(0) == random_words{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
              "constant expressions too");

uint64 joined(uint32 low, uint32 high) { return (static_cast<uint64>(high) << 32) | low; }

// Philox4x32-10 as the paper's figure 2 draws it: a substitution-permutation network over a list of words.
random_words paper_philox(std::array<uint32, 4> counter, std::array<uint32, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const unsigned __int128 product0 = static_cast<unsigned __int128>(counter[0]) * 0xD2511F53;
    const unsigned __int128 product1 = static_cast<unsigned __int128>(counter[2]) * 0xCD9E8D57;
    const auto high = [](unsigned __int128 p) { return static_cast<uint32>(p / 4294967296); };
    const auto low = [](unsigned __int128 p) { return static_cast<uint32>(p % 4294967296); };
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1],
               low(product0)};
    key = {static_cast<uint32>(key[0] + 0x9E3779B9u), static_cast<uint32>(key[1] + 0xBB67AE85u)};
  }
  return {{counter[0], counter[1], counter[2], counter[3]}};
}

int bits_that_differ(const random_words& a, const random_words& b) {
  int bits = 0;
  for (int w = 0; w < 4; ++w) bits += __builtin_popcount(a.word[w] ^ b.word[w]);
  return bits;
}

constexpr uint64 n = 1 << 20;

// The definition of Box and Muller, in double precision.
double exact_normal(const random_words& r) {
  const double u = (static_cast<double>(r.word[0]) + 1) / 4294967296, v = static_cast<double>(r.word[1]) / 4294967296;
  // Of an angle near a quarter turn a double has enough digits only less the quarter.
  const double quarters = std::round(4 * v), rest = (4 * v - quarters) * (std::acos(-1.0) / 2);
  const int q = static_cast<int>(quarters) % 4;
  const double cosine = q == 0 ? std::cos(rest) : q == 1 ? -std::sin(rest) : q == 2 ? -std::cos(rest) : std::sin(rest);
  return std::sqrt(-2 * std::log(u)) * cosine;
}

// The error of y in units in the last place of the exact value.
double units(float y, double exact) {
  if (exact == 0) return y == 0 ? 0 : 1e9;
  return std::abs(static_cast<double>(y) - exact) / std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
}

// |x| of a normal variable with variance 1 exceeds this once in 10^8; the numbers are the same in every run.
constexpr double rare = 5.7;

}  // namespace

TEST_CASE("the known answers of Random123") {
  CHECK(philox{0, 0}(0) == random_words{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  CHECK(philox{~uint64{0}, ~uint64{0}}(~uint64{0}) == random_words{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  const philox digits_of_pi{joined(0xa4093822, 0x299f31d0), joined(0x13198a2e, 0x03707344)};
  CHECK(digits_of_pi(joined(0x243f6a88, 0x85a308d3)) == random_words{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST_CASE("any seed, stream and element, against the paper") {
  giwa_test::random_sequence random(1);
  for (int i = 0; i < 100000; ++i) {
    const uint64 seed = random.bits(), stream = random.bits(), element = random.bits();
    const auto low = [](uint64 x) { return static_cast<uint32>(x); };
    const auto high = [](uint64 x) { return static_cast<uint32>(x >> 32); };
    const random_words expected =
        paper_philox({low(element), high(element), low(stream), high(stream)}, {low(seed), high(seed)});
    REQUIRE(philox(seed, stream)(element) == expected);
  }
}

TEST_CASE("uniform numbers are the upper bits, in [0, 1)") {
  const philox random{7, 3};
  for (uint64 i = 0; i < n; ++i) {
    const random_words r = random(i);
    const float f = random.uniform<float>(i);
    const double d = random.uniform<double>(i);
    if (f == std::ldexp(static_cast<float>(r.word[0] / 256), -24) && f >= 0 && f < 1 &&
        d == std::ldexp(static_cast<double>(joined(r.word[0], r.word[1]) / 2048), -53) && d >= 0 && d < 1)
      continue;
    CAPTURE(i, f, d);
    REQUIRE(false);
  }
}

TEMPLATE_TEST_CASE("uniform numbers have the moments of a uniform distribution", "", float, double) {
  const double samples = static_cast<double>(n);
  std::vector<double> x(n), y(n);
  std::vector<int> bin(256);
  double sum = 0, squares = 0, across = 0;
  for (uint64 i = 0; i < n; ++i) {
    x[i] = static_cast<double>(philox(1, 0).uniform<TestType>(i));
    y[i] = static_cast<double>(philox(1, 1).uniform<TestType>(i));
    sum += x[i] - 0.5;
    squares += (x[i] - 0.5) * (x[i] - 0.5);
    across += (x[i] - 0.5) * (y[i] - 0.5);
    ++bin[static_cast<std::size_t>(256 * x[i])];
  }
  const double variance = 1.0 / 12, fourth = 1.0 / 80;
  CHECK(std::abs(sum) < rare * std::sqrt(samples * variance));
  CHECK(std::abs(squares - samples * variance) < rare * std::sqrt(samples * (fourth - variance * variance)));
  CHECK(std::abs(across) < rare * std::sqrt(samples) * variance);  // two streams of one seed
  for (const std::size_t lag : {1u, 2u, 3u, 4u, 7u, 8u, 32u, 256u}) {
    double correlation = 0;
    for (std::size_t i = lag; i < n; ++i) correlation += (x[i] - 0.5) * (x[i - lag] - 0.5);
    CAPTURE(lag);
    CHECK(std::abs(correlation) < rare * std::sqrt(samples) * variance);
  }
  double chi_square = 0;
  for (const int count : bin) chi_square += std::pow(count - samples / 256, 2) / (samples / 256);
  CHECK(std::abs(chi_square - 255) < rare * std::sqrt(2.0 * 255));
}

TEST_CASE("normal numbers are those of Box and Muller") {
  double worst = 0;
  for (uint64 i = 0; i < n; ++i)
    worst = std::max(worst, units(philox(3, 1).normal<float>(i), exact_normal(philox(3, 1)(i))));
  CHECK(worst <= 4);
  CHECK(worst > 0.5);  // or the error is not measured
}

TEST_CASE("every size of the words of a normal number") {
  double worst = 0, largest = 0;
  const auto check = [&](uint32 radius, uint32 angle) {
    const float r = giwa::detail::square_root(2 * giwa::detail::minus_log_of_uniform(radius));
    const float y = r * giwa::detail::cosine_of_turn(angle);
    worst = std::max(worst, units(y, exact_normal({{radius, angle, 0, 0}})));
    largest = std::max(largest, std::abs(static_cast<double>(y)));
  };
  for (int bit = 0; bit < 32; ++bit)
    for (int near = -300; near <= 300; ++near) {
      const uint32 word = (uint32{1} << bit) + static_cast<uint32>(near), other = uint32{0} - word;
      for (const uint32 fixed : {0u, 1u, 12345678u, 0x7fffffffu, 0xb504f333u, 0xb504f334u, 0xfffffffeu, ~0u})
        for (const uint32 a : {word, other}) check(a, fixed), check(fixed, a);
    }
  for (uint64 word = 0; word <= ~uint32{0}; word += 4093) check(static_cast<uint32>(word), 0);
  for (uint64 word = 0; word <= ~uint32{0}; word += 4093) check(0, static_cast<uint32>(word));
  CHECK(worst <= 4);
  CHECK(largest > 6.66);
  CHECK(largest < 6.67);
}

TEST_CASE("normal numbers have the moments and the quantiles of a normal distribution") {
  const double samples = static_cast<double>(n);
  std::vector<double> x(n);
  std::vector<int> bin(256);
  double powers[5] = {}, across = 0;
  for (uint64 i = 0; i < n; ++i) {
    x[i] = static_cast<double>(philox(1, 0).normal<float>(i));
    across += x[i] * static_cast<double>(philox(1, 1).normal<float>(i));
    for (int p = 1; p <= 4; ++p) powers[p] += std::pow(x[i], p);
    ++bin[static_cast<std::size_t>(std::min(255.0, 128 * std::erfc(-x[i] / std::sqrt(2.0))))];
  }
  // Means 0, 1, 0, 3 of the powers, with variances 1, 2, 15, 96.
  CHECK(std::abs(powers[1]) < rare * std::sqrt(samples));
  CHECK(std::abs(powers[2] - samples) < rare * std::sqrt(2 * samples));
  CHECK(std::abs(powers[3]) < rare * std::sqrt(15 * samples));
  CHECK(std::abs(powers[4] - 3 * samples) < rare * std::sqrt(96 * samples));
  CHECK(std::abs(across) < rare * std::sqrt(samples));
  for (const std::size_t lag : {1u, 2u, 3u, 4u, 7u, 8u, 32u, 256u}) {
    double correlation = 0;
    for (std::size_t i = lag; i < n; ++i) correlation += x[i] * x[i - lag];
    CAPTURE(lag);
    CHECK(std::abs(correlation) < rare * std::sqrt(samples));
  }
  double chi_square = 0;
  for (const int count : bin) chi_square += std::pow(count - samples / 256, 2) / (samples / 256);
  CHECK(std::abs(chi_square - 255) < rare * std::sqrt(2.0 * 255));
}

TEST_CASE("one bit of the seed, the stream or the element changes half of the bits") {
  for (const uint64 at : {uint64{0}, uint64{12345678901234567}}) {
    const random_words before = philox(at, at)(at);
    for (int bit = 0; bit < 64; ++bit) {
      const uint64 other = at ^ (uint64{1} << bit);
      CAPTURE(at, bit);
      for (const random_words& after : {philox(other, at)(at), philox(at, other)(at), philox(at, at)(other)})
        REQUIRE(std::abs(bits_that_differ(before, after) - 64) < rare * std::sqrt(32.0));
    }
  }
}
