// SPDX-License-Identifier: MIT
// Rotary embeddings against long double, at positions up to 10^7 and beyond; tables; what is refused.
#include <giwa/attention/append/append_unit.hpp>
#include <giwa/attention/append/rotary.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::int64;
using giwa::rotary_base;
using giwa::rotary_table;
using giwa::rotation;
using giwa::tensor_view;

namespace {

static_assert(giwa::rotary_embedding<giwa::no_rotary> && giwa::rotary_embedding<rotary_base>);
static_assert(giwa::rotary_embedding<rotary_table<giwa::bf16>> && !giwa::rotary_embedding<float>);
static_assert(std::is_trivially_copyable_v<rotary_base> && std::is_trivially_copyable_v<rotary_table<float>>);

// The largest error of cosine and sine over some positions and all pairs.
double worst_error(double theta, int size, double scale, const std::vector<int64>& positions) {
  const rotary_base r(theta, {size}, scale);
  REQUIRE(r.check().ok());
  double worst = 0;
  for (int pair = 0; pair < size / 2; ++pair) {
    const long double step =
        static_cast<long double>(scale) * std::pow(static_cast<long double>(theta), -2.0L * pair / size);
    for (const int64 position : positions) {
      const long double angle = static_cast<long double>(position) * step;
      const rotation got = r(position, pair);
      worst = std::max({worst, static_cast<double>(std::abs(static_cast<long double>(got.cos) - std::cos(angle))),
                        static_cast<double>(std::abs(static_cast<long double>(got.sin) - std::sin(angle)))});
    }
  }
  return worst;
}

std::vector<int64> positions_up_to(int64 end, int count) {
  giwa_test::random_sequence random(11);
  std::vector<int64> positions{0, 1, 2, 3, end - 1, end};
  for (int i = 0; i < count; ++i) positions.push_back(random.below(end));
  return positions;
}

}  // namespace

TEST_CASE("rotations by a base are right at all positions") {
  for (const double theta : {1.0, 100.0, 10000.0, 500000.0, 1e6, 1e8})
    for (const int size : {2, 6, 64, 128, 256, 512, 1024}) {
      CAPTURE(theta, size);
      CHECK(worst_error(theta, size, 1, positions_up_to(4096, 100)) < 2e-7);
      CHECK(worst_error(theta, size, 1, positions_up_to(10000000, 300)) < 3e-7);
    }
  CHECK(worst_error(10000, 128, 1, {-1, -5, -1000, -10000000}) < 3e-7);
  CHECK(worst_error(10000, 128, 0.125, positions_up_to(10000000, 300)) < 3e-7);
  CHECK(worst_error(10000, 128, 5.9, positions_up_to(1000000, 300)) < 3e-7);
  CHECK(worst_error(10000, 128, 1, positions_up_to(1000000000, 300)) < 3e-5);
}

TEST_CASE("position 0 does not rotate") {
  const rotary_base r(10000, {128});
  for (int pair = 0; pair < 64; ++pair) {
    CHECK(r(0, pair).cos == 1);
    CHECK(r(0, pair).sin == 0);
  }
}

TEST_CASE("rotations by a table are those of the table, and NaN outside") {
  std::vector<giwa::fp16> values(5 * 8);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = giwa::convert<giwa::fp16>{}(static_cast<float>(i) / 64);
  // Cosines, then sines in a row, as in vLLM.
  const tensor_view<const giwa::fp16, 2> cos(values.data(), {5, 4}, {8, 1}), sin(values.data() + 4, {5, 4}, {8, 1});
  const rotary_table r(cos, sin, {.interleaved = true, .first = 2});
  static_assert(std::is_same_v<decltype(r), const rotary_table<giwa::fp16>>);
  REQUIRE(r.check().ok());
  CHECK((r.size == 8 && r.interleaved && r.first == 2));
  for (int position = 0; position < 5; ++position)
    for (int pair = 0; pair < 4; ++pair) {
      CHECK(r(position, pair).cos == static_cast<float>(8 * position + pair) / 64);
      CHECK(r(position, pair).sin == static_cast<float>(8 * position + 4 + pair) / 64);
    }
  for (const int64 position : {int64{-1}, int64{5}, int64{1} << 40}) {
    CHECK(std::isnan(r(position, 0).cos));
    CHECK(std::isnan(r(position, 3).sin));
  }
}

TEST_CASE("a table of fp64 is rounded to fp32") {
  const std::vector<double> values{0.1, 0.7, 1.0 / 3, 0.9};
  const tensor_view<const double, 2> cos(values.data(), {1, 2}), sin(values.data() + 2, {1, 2});
  const rotary_table r(cos, sin);
  REQUIRE(r.check().ok());
  for (int pair = 0; pair < 2; ++pair) {
    CHECK(r(0, pair).cos == static_cast<float>(values[static_cast<std::size_t>(pair)]));
    CHECK(r(0, pair).sin == static_cast<float>(values[static_cast<std::size_t>(pair + 2)]));
  }
}

TEST_CASE("four neighbouring pairs have the bits of each") {
  int different = 0;
  for (const int size : {8, 128, 1024})
    for (const giwa::int64 position : {0, 1, 4097, 10000000}) {
      const giwa::rotary_base rotary(500000, {size});
      for (int pair = 0; pair < size / 2; pair += 4)
        rotary.of_four_pairs(position, pair, [&](int i, const giwa::rotation& r) {
          const giwa::rotation one = rotary(position, pair + i);
          different += r.cos == one.cos && r.sin == one.sin ? 0 : 1;
        });
    }
  CHECK(different == 0);
}

template <class T>
int fours_that_differ(const rotary_table<T>& rotary) {
  int different = 0;
  for (const giwa::int64 position : {-1, 0, 1, 2, 3})  // of 3
    for (int pair = 0; pair < rotary.size / 2; pair += 4) {
      int calls = 0;
      rotary.of_four_pairs(position, pair, [&](int i, const giwa::rotation& r) {
        different += i == calls++ ? 0 : 1;
        const giwa::rotation one = rotary(position, pair + i);
        const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
        different += same(r.cos, one.cos) && same(r.sin, one.sin) ? 0 : 1;
      });
      different += calls == 4 ? 0 : 1;
    }
  return different;
}

TEST_CASE("four neighbouring pairs of a table have the bits of each, however its rows lie") {
  alignas(16) float of_float[100];
  alignas(16) giwa::bf16 of_bf16[100];
  alignas(16) double of_double[100];
  for (int i = 0; i < 100; ++i) {
    of_float[i] = static_cast<float>(i), of_double[i] = i;
    of_bf16[i] = giwa::convert<giwa::bf16>{}(static_cast<float>(i));
  }
  const auto differ = [](const auto* data, const giwa::index<2>& strides) {
    using table = tensor_view<const std::remove_cvref_t<decltype(*data)>, 2>;
    return fours_that_differ(rotary_table(table(data, {3, 8}, strides), table(data + 40, {3, 8}, strides)));
  };
  for (const giwa::index<2>& strides : {giwa::index<2>{8, 1}, {12, 1}, {9, 1}, {16, 2}, {1, 3}})
    for (const int first : {0, 1}) {
      CHECK(differ(of_float + first, strides) == 0);
      CHECK(differ(of_bf16 + first, strides) == 0);
      CHECK(differ(of_double + first, strides) == 0);
    }
}

// A user's embeddings: of giwa's, with other rotations.
struct doubled_base : rotary_base {
  using rotary_base::rotary_base;
  GIWA_HOST_DEVICE rotation operator()(int64 position, int pair) const {
    return rotary_base::operator()(2 * position, pair);
  }
};
struct shifted_table : rotary_table<float> {
  using rotary_table<float>::rotary_table;
  GIWA_HOST_DEVICE rotation operator()(int64 position, int pair) const {
    return rotary_table<float>::operator()(position + 1, pair);
  }
};
template <class Rotary>
int rotations_that_differ(const Rotary& rotary, int64 position) {
  giwa::detail::unit_rotations<8> found;
  found.fill(rotary, position, {0, 8, 0, 4});
  int different = 0;
  for (int i = 0; i < 8; ++i) {
    const rotation wanted = rotary(position, i);
    different += found.cos[i] == wanted.cos && found.sin[i] == wanted.sin ? 0 : 1;
  }
  return different;
}

TEST_CASE("the rotations of a unit are those of the embedding's own type") {
  std::vector<float> x(80);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const tensor_view<const float, 2> cos(x.data(), {5, 8}), sin(x.data() + 40, {5, 8});
  CHECK(rotations_that_differ(rotary_base(100, {16}), 3) == 0);
  CHECK(rotations_that_differ(doubled_base(100, {16}), 3) == 0);
  CHECK(rotations_that_differ(rotary_table(cos, sin), 3) == 0);
  CHECK(rotations_that_differ(shifted_table(cos, sin), 3) == 0);
}

TEST_CASE("rotary embeddings that are refused") {
  const auto refused = [](const giwa::status& s, const std::string& argument, const std::string& words) {
    INFO(s.argument << ": " << s.message);
    CHECK(s.code == giwa::status_code::invalid_argument);
    CHECK((s.argument == argument && std::string(s.message).find(words) != std::string::npos));
  };
  for (const double theta : {0.5, -1.0, 0.0, static_cast<double>(NAN), static_cast<double>(INFINITY)})
    refused(rotary_base(theta, {64}).check(), "rotary", "theta must be");
  for (const double scale : {0.0, -1.0, 7.0, static_cast<double>(NAN)})
    refused(rotary_base(100, {64}, scale).check(), "rotary", "theta must be");
  refused(rotary_base(100, {1026}).check(), "rotary", "at most so many");
  const std::vector<float> x(100);
  const auto table = [&](const giwa::index<2>& cos, const giwa::index<2>& sin, int size) {
    return rotary_table(tensor_view<const float, 2>(x.data(), cos), tensor_view<const float, 2>(x.data(), sin), {size})
        .check();
  };
  CHECK(table({10, 4}, {10, 4}, 8).ok());
  CHECK(table({10, 4}, {10, 4}, 0).ok());
  refused(table({10, 4}, {10, 4}, 6), "cos", "half of the rotated elements");
  refused(table({10, 4}, {9, 4}, 8), "sin", "the sizes of cos");
  refused(table({10, 4}, {10, 3}, 8), "sin", "the sizes of cos");
  refused(
      rotary_table(tensor_view<const float, 2>(nullptr, {3, 2}), tensor_view<const float, 2>(x.data(), {3, 2})).check(),
      "cos", "null");
}

TEST_CASE("a table with the wrong number of columns is refused with the right one") {
  const std::vector<float> values(64);
  const tensor_view<const float, 2> wrong(values.data(), {4, 5}), right(values.data(), {4, 6});
  const giwa::status s = rotary_table(wrong, wrong, {12}).check();
  CHECK(std::string(s.argument) == "cos");
  CHECK(s.expected == 6);
  CHECK(s.got == 5);
  CHECK(rotary_table(right, right, {12}).check().ok());
}
