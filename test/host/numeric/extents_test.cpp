// SPDX-License-Identifier: MIT
// Indices and extents: static and run-time sizes, sizes that no program can have, and the order of the elements.
#include <giwa/numeric/extents.hpp>

#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::bound;
using giwa::dynamic;
using giwa::extents;

using giwa::int64;
using giwa::max_int64;
using giwa::result;
using giwa::status_code;
using giwa::uint64;

namespace {

static_assert(std::is_same_v<decltype(extents{3, 4u, 5LL, short{6}}), extents<dynamic, dynamic, dynamic, dynamic>>);
static_assert(std::is_same_v<decltype(extents(std::size_t{3})), extents<dynamic>>);
static_assert(std::is_trivially_copyable_v<extents<dynamic, 128>> && sizeof(extents<dynamic, 128>) == 8);
static_assert(!std::is_constructible_v<extents<dynamic, 128>, int, int>, "a static size is not given again");
static_assert(!std::is_constructible_v<extents<dynamic, dynamic>, int>);
static_assert(extents<2, 3>{}.size() == 6 && extents<dynamic, 3>{4}.size() == 12);
static_assert(extents<7, dynamic, 9>::static_size(0) == 7 && extents<7, dynamic, 9>::static_size(1) == dynamic &&
              extents<7, dynamic, 9>::static_size(2) == 9 && extents<7, dynamic, 9>::dynamic_rank == 1);
static_assert(delinearize(extents{3, 4}, 11) == giwa::index{2, 3} && linearize(extents{3, 4}, {2, 3}) == 11);
static_assert(extents{3, 4} == extents{3, 4} && !(extents{3, 4} == extents{4, 3}));

static_assert(std::is_same_v<decltype(giwa::index{1, 2u, 3LL}), giwa::index<3>>);
static_assert(std::is_trivially_copyable_v<giwa::index<3>> &&
              std::is_trivially_default_constructible_v<giwa::index<3>>);
static_assert(giwa::index<2>{} == giwa::index{0, 0} && giwa::index{1, 2}.get<1>() == 2);
static_assert(std::is_convertible_v<giwa::index<1>, int64> && std::is_convertible_v<int, giwa::index<1>>);
static_assert(!std::is_convertible_v<giwa::index<2>, int64>);
static_assert(std::tuple_size_v<giwa::index<4>> == 4 && std::is_same_v<std::tuple_element_t<3, giwa::index<4>>, int64>);

// The product of the sizes, or nothing where one is negative or the product is beyond an int64; 0 wins over too large.
template <int N>
std::optional<int64> product_of(const giwa::index<N>& sizes) {
  bool zero = false;
  for (int d = 0; d < N; ++d) {
    if (sizes[d] < 0) return {};
    zero = zero || sizes[d] == 0;
  }
  if (zero) return 0;
  __int128 product = 1;
  for (int d = 0; d < N; ++d) {
    product *= sizes[d];
    if (product > max_int64) return {};
  }
  return static_cast<int64>(product);
}

template <int64... Sizes>
bool size_is_right(const extents<Sizes...>& e) {
  giwa::index<sizeof...(Sizes)> sizes;
  for (int d = 0; d < e.rank; ++d) sizes[d] = e[d];
  const std::optional<int64> expected = product_of(sizes);
  const result<int64> r = e.checked_size("shape");
  if (!expected)
    return r.state.code == status_code::invalid_argument && r.value == 0 && r.state.argument == std::string("shape");
  return r.ok() && r.value == *expected;
}

// Walks all positions in row-major order by counting, and compares each with what the rank says.
template <int64... Sizes>
bool order_is_right(const extents<Sizes...>& e) {
  giwa::index<sizeof...(Sizes)> i{};
  for (int64 rank = 0; rank < e.size(); ++rank) {
    if (!e.contains(i) || linearize(e, i) != rank || !(delinearize(e, rank) == i)) return false;
    for (int d = e.rank - 1; d >= 0 && ++i[d] == e[d]; --d)
      if (d > 0) i[d] = 0;
  }
  return i[0] == e[0];  // the walk has come to the end
}

template <class T>
bool count_is_right(T n) {
  const result<int64> r = giwa::detail::checked_count(n, "count");
  const bool fits = static_cast<__int128>(n) >= 0 && static_cast<__int128>(n) <= max_int64;
  return fits ? r.ok() && r.value == static_cast<int64>(n)
              : r.state.code == status_code::invalid_argument && r.value == 0;
}

}  // namespace

TEST_CASE("an index is made of any integers and taken apart again") {
  const auto [z, y, x] = giwa::index{short{-1}, 2u, int64{1} << 40};
  CHECK(z == -1);
  CHECK(y == 2);
  CHECK(x == int64{1} << 40);
  giwa::index<2> i{3, 4};
  i[1] = 7;
  CHECK(i == giwa::index{3, 7});
  CHECK_FALSE(i == giwa::index{3, 4});
  CHECK_FALSE(i == giwa::index{4, 7});
  const giwa::index<1> line = 5;
  const int64 as_number = line;
  CHECK(as_number + line == 10);
  const std::vector<int> data{0, 1, 2, 3, 4, 5};
  CHECK(data[static_cast<std::size_t>(line)] == 5);
}

TEST_CASE("extents know their sizes, static or not") {
  const extents<dynamic, 128, dynamic, 3> e{5, 7};
  const int64 sizes[] = {5, 128, 7, 3};
  for (int d = 0; d < 4; ++d) CHECK(e[d] == sizes[d]);
  CHECK(e.size() == 5 * 128 * 7 * 3);
  CHECK(extents<dynamic, 128, dynamic, 3>::from({5, 128, 7, 3}) == e);
  CHECK(extents<dynamic, dynamic>{} == extents{0, 0});
  CHECK(extents(-3)[0] == -3);
}

TEST_CASE("checked_size reports what no array can have") {
  SECTION("small sizes, all of them") {
    for (int64 a = -2; a < 5; ++a)
      for (int64 b = -2; b < 5; ++b)
        for (int64 c = -2; c < 5; ++c) {
          CAPTURE(a, b, c);
          REQUIRE(size_is_right(extents{a, b, c}));
          REQUIRE(size_is_right(extents<dynamic, 3, dynamic>{a, c}));
        }
  }
  SECTION("edges") {
    std::vector<int64> values = giwa_test::edges();
    values.insert(values.end(), {-1, -max_int64, -max_int64 - 1});
    for (const int64 a : values)
      for (const int64 b : values) {
        CAPTURE(a, b);
        REQUIRE(size_is_right(extents{a, b}));
        REQUIRE(size_is_right(extents<dynamic, 5, dynamic>{a, b}));
        REQUIRE(size_is_right(extents{a, b, 0}));
        REQUIRE(size_is_right(extents{a, 3, b, 2}));
      }
  }
  SECTION("the numbers that it reports") {
    const result<int64> negative = extents{4, -7, -8}.checked_size();
    CHECK(negative.state.relation == bound::at_least);
    CHECK(negative.state.expected == 0);
    CHECK(negative.state.got == -7);
    const result<int64> large = extents{int64{1} << 40, 16, int64{1} << 20}.checked_size();
    CHECK(large.state.relation == bound::at_most);
    CHECK(large.state.expected == max_int64 >> 44);
    CHECK(large.state.got == int64{1} << 20);
    CHECK(extents(std::numeric_limits<uint64>::max()).checked_size().state.got == -1);
  }
  SECTION("what checked_size accepts has a size") {
    CHECK(extents{int64{1} << 62, 4, 0}.size() == 0);
    CHECK(extents{max_int64, max_int64, 0, max_int64}.size() == 0);
  }
  SECTION("static sizes too") {
    CHECK_FALSE((extents<int64{1} << 40, int64{1} << 40>{}.checked_size().ok()));
    CHECK((extents<int64{1} << 40, 0, int64{1} << 40>{}.checked_size().value == 0));
  }
}

TEST_CASE("linearize counts in row-major order, and delinearize is its inverse") {
  for (int64 a = 0; a < 6; ++a) {
    REQUIRE(order_is_right(extents{a}));
    for (int64 b = 1; b < 6; ++b) {
      REQUIRE(order_is_right(extents{a, b}));
      REQUIRE(order_is_right(extents<dynamic, 4>{a}));
      for (int64 c = 1; c < 6; ++c) {
        REQUIRE(order_is_right(extents{a, b, c}));
        REQUIRE(order_is_right(extents<dynamic, 3, dynamic, dynamic>{a, b, c}));
      }
    }
  }
  REQUIRE(order_is_right(extents<2, 3, 4, 5>{}));

  giwa_test::random_sequence random(1);
  const extents large{int64{1} << 20, (int64{1} << 20) - 1, (int64{1} << 23) - 3};
  const extents long_rows{3, int64{1} << 61};
  const int64 size = large.checked_size().value, long_size = long_rows.checked_size().value;
  REQUIRE(size > int64{1} << 62);
  for (int i = 0; i < 100000; ++i) {
    const int64 rank = i == 0 ? size - 1 : random.below(size);
    const giwa::index<3> position = delinearize(large, rank);
    REQUIRE(large.contains(position));
    REQUIRE(linearize(large, position) == rank);
    const int64 far = i == 0 ? long_size - 1 : random.below(long_size);
    REQUIRE(linearize(long_rows, delinearize(long_rows, far)) == far);
  }
}

TEST_CASE("contains is true inside and nowhere else") {
  const extents e{2, 3};
  for (int64 a = -2; a < 5; ++a)
    for (int64 b = -2; b < 5; ++b) CHECK(e.contains({a, b}) == (a >= 0 && a < 2 && b >= 0 && b < 3));
  CHECK_FALSE(extents{0, 3}.contains({0, 0}));
  CHECK_FALSE(extents{max_int64}.contains({max_int64}));
  CHECK(extents{max_int64}.contains({max_int64 - 1}));
}

TEMPLATE_TEST_CASE("a count of any integer type is taken or refused, never changed", "", signed char, unsigned char,
                   short, unsigned short, int, unsigned, long, unsigned long, long long, unsigned long long) {
  using limits = std::numeric_limits<TestType>;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(count_is_right(static_cast<TestType>(limits::min() + static_cast<TestType>(i))));
    REQUIRE(count_is_right(static_cast<TestType>(limits::max() - static_cast<TestType>(i))));
    REQUIRE(count_is_right(static_cast<TestType>(i)));
  }
  for (const int64 edge : giwa_test::edges()) {
    REQUIRE(count_is_right(static_cast<TestType>(edge)));
    REQUIRE(count_is_right(static_cast<TestType>(~static_cast<uint64>(edge))));
  }
}
