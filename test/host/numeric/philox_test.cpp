// SPDX-License-Identifier: MIT
// Philox: the known answers of its authors, another implementation, and what is to be expected of random numbers.
#include <giwa/numeric/philox.hpp>

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
