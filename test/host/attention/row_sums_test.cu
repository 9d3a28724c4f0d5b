// SPDX-License-Identifier: MIT
// The merge of states (m, l, O): compared with double precision, and over hostile values.
#include <giwa/attention/sums/row_sums.cuh>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using namespace giwa::detail;
using giwa::int64;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(), no_number = std::numeric_limits<float>::quiet_NaN();

/// Two rows, of which a thread has columns in turn.
struct two_rows {
  using shape = giwa::tile_shape<2, 3>;
  static constexpr int rows = 2, registers = 6;
  GIWA_HOST_DEVICE static constexpr int slot(int i) { return i % 2; }
};
using sums = row_sums<two_rows>;
using one_row = row_sums<columns_of_row<1>>;

bool same_bits(const sums& a, const sums& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

one_row of(float m, float l, float o) { return {{m}, {l}, {{o}}}; }
one_row merged(one_row a, const one_row& b) {
  a.merge(b);
  return a;
}

struct numbers {
  giwa_test::random_sequence random;
  float in(double range) {
    return static_cast<float>(range * (static_cast<double>(random.below(int64{1} << 40)) * 0x1p-39 - 1));
  }
  sums state(double range) {
    sums x{};
    for (int r = 0; r < 2; ++r) x.m[r] = in(range), x.l[r] = in(1) + 1.5f;
    for (float& o : x.o.value) o = in(8);
    return x;
  }
};

}  // namespace

TEST_CASE("merged rows are those of all keys") {
  numbers random{giwa_test::random_sequence(5)};
  double worst = 0;
  for (int i = 0; i < 20'000; ++i) {
    const double range = i % 3 == 0 ? 1 : i % 3 == 1 ? 20 : 300;
    const int count = 1 + i % 7;  // of partials
    std::vector<sums> parts;
    for (int k = 0; k < count; ++k) parts.push_back(random.state(range));
    sums all{};
    all.reset();
    for (const sums& x : parts) all.merge(x);
    for (int r = 0; r < 2; ++r) {
      double m = -inf, l = 0, o[6] = {}, size[6] = {};
      for (const sums& x : parts) m = std::max(m, static_cast<double>(x.m[r]));
      for (const sums& x : parts) {
        const double factor = std::exp2(static_cast<double>(x.m[r]) - m);
        l += factor * static_cast<double>(x.l[r]);
        for (int c = r; c < 6; c += 2) {
          const double term = factor * static_cast<double>(x.o.value[c]);
          o[c] += term, size[c] += std::abs(term);
        }
      }
      // Differences of m are rounded, and factors of factors multiplied.
      const double unit = (2 + range) * count * 0x1p-24;
      CHECK(static_cast<double>(all.m[r]) == m);
      worst = std::max(worst, std::abs(static_cast<double>(all.l[r]) / l - 1) / unit);
      for (int c = r; c < 6; c += 2)
        worst = std::max(worst, std::abs(static_cast<double>(all.o.value[c]) - o[c]) / (size[c] * unit));
    }
  }
  CHECK(worst < 1);
  CHECK(worst > 0.01);
}

TEST_CASE("a state of no keys merges exactly, on either side") {
  numbers random{giwa_test::random_sequence(6)};
  sums empty{};
  empty.reset();
  for (int i = 0; i < 1000; ++i) {
    const sums x = random.state(i % 2 == 0 ? 3 : 1e30);
    sums before = empty, after = x;
    before.merge(x);
    after.merge(empty);
    after.merge(empty);
    CHECK((same_bits(before, x) && same_bits(after, x)));
  }
  sums both = empty;
  both.merge(empty);
  CHECK(same_bits(both, empty));
  // Of one row only.
  sums one = random.state(2);
  one.m[1] = -inf, one.l[1] = 0;
  for (int c = 1; c < 6; c += 2) one.o.value[c] = 0;
  const sums whole = random.state(2);
  sums all = whole;
  all.merge(one);
  CHECK((all.m[1] == whole.m[1] && all.l[1] == whole.l[1] && all.o.value[3] == whole.o.value[3]));
  CHECK(all.l[0] != whole.l[0]);
}

TEST_CASE("hostile states") {
  const one_row plain = of(2, 3, 5);
  // A row that is NaN stays so, whatever is merged before or after it; its m is ignored.
  for (const one_row& bad :
       {of(2, no_number, no_number), of(-inf, no_number, no_number), of(300, no_number, no_number)}) {
    for (const one_row& all : {merged(plain, bad), merged(bad, plain)})
      CHECK((std::isnan(all.l[0]) && std::isnan(all.o.value[0])));
  }
  // NaN or infinity in a column of O leaves l alone.
  const one_row column = merged(of(1, 2, no_number), plain);
  CHECK((column.l[0] == 4 && std::isnan(column.o.value[0])));
  CHECK(merged(plain, of(1, 2, inf)).o.value[0] == inf);
  CHECK(std::isnan(merged(of(2, 1, -inf), of(2, 1, inf)).o.value[0]));
  // A score of +inf.
  CHECK(std::isnan(merged(plain, of(inf, no_number, no_number)).l[0]));
  CHECK(std::isnan(merged(of(inf, 1, 1), plain).l[0]));
  // Far below, a state adds nothing, but an infinity of weight 0 is NaN.
  CHECK((merged(plain, of(-1000, 7, 9)).l[0] == 3 && merged(of(-1000, 7, 9), plain).o.value[0] == 5));
  CHECK(std::isnan(merged(plain, of(-1000, 1, inf)).o.value[0]));
  // The largest m that differences allow.
  const float most = std::numeric_limits<float>::max();
  CHECK((merged(of(most, 1, 2), of(-most, 1, 2)).l[0] == 1 && merged(of(most, 1, 2), of(most, 1, 2)).l[0] == 2));
}

TEST_CASE("factors of many states") {
  numbers random{giwa_test::random_sequence(7)};
  for (int i = 0; i < 1000; ++i) {
    float m[8], factor[8];
    for (float& x : m) x = random.random.below(4) == 0 ? -inf : random.in(40);
    const float largest = merge_maxima(m, factor);
    CHECK(largest == *std::max_element(m, m + 8));
    for (int k = 0; k < 8; ++k) CHECK(factor[k] == (largest == -inf ? 0.0f : std::exp2(m[k] - largest)));
    // Two by two they are those of row_sums.
    float pair[2];
    merge_maxima<2>({m[0], m[1]}, pair);
    const one_row all = merged(of(m[0], 3, 1), of(m[1], 5, 1));
    CHECK(all.l[0] == std::fma(3.0f, pair[0], 5.0f * pair[1]));
  }
  float none[3] = {-inf, -inf, -inf}, factor[3];
  CHECK(merge_maxima(none, factor) == -inf);
  CHECK((factor[0] == 0 && factor[2] == 0));
}

TEST_CASE("rows that are set aside merge as those in registers") {
  numbers random{giwa_test::random_sequence(8)};
  for (int i = 0; i < 100; ++i) {
    const sums earlier = random.state(9), later = random.state(9);
    sums all = earlier, now = later;
    all.merge(later);
    local_partial<two_rows> aside{};
    for (int r = 0; r < 2; ++r) {
      aside.m[r] = earlier.m[r];
      aside.l[r] = earlier.l[r];
    }
    for (int c = 0; c < 6; ++c) aside.o[c] = earlier.o.value[c];
    merge_rows<two_rows>(aside, {now.m, now.l, now.o.value}, {now.m, now.l, now.o.value});
    CHECK(same_bits(now, all));
  }
}
