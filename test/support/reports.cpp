// SPDX-License-Identifier: MIT
// Assertions that fail, one of each kind: reports.cmake looks for what they have to say.
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "support/catch.hpp"

namespace {
int of(int x) { return x; }
template <int A, int B>
struct pair_of {};
}  // namespace

TEST_CASE("check") {
  CHECK(of(1) == 2);
  CHECK(of(3) < of(2));
  CHECK(std::string("left") == "right");
  CHECK(std::vector<int>{1, 2} == std::vector<int>{1, 3});
  CHECK(0.5 >= 0.75f);
  CHECK(of(0));
  CHECK_FALSE(of(1) == 1);
  CHECK_THROWS_AS(of(4), std::exception);
}
TEST_CASE("require") {
  REQUIRE(of(5) != 5);
  CHECK(of(6) == 7);  // never reached
}
TEST_CASE("require_false") { REQUIRE_FALSE(of(1) == 1); }
TEST_CASE("fail") { FAIL("stop " << 8); }
TEST_CASE("exception") {
  INFO("before the exception");
  throw std::runtime_error("thrown nine");
}
TEST_CASE("context") {
  const int x = 10, y = 11;
  { INFO("gone " << 12); }
  INFO("a number " << 13 << ", a string " << std::string("s"));
  CAPTURE(x, of(y));
  CHECK(of(14) == 15);
  UNSCOPED_INFO("only once " << 16);
  CHECK(of(17) == 18);
  CHECK(of(19) == 20);
}
TEST_CASE("sections") {
  SECTION("first") { CHECK(of(21) == 22); }
  SECTION("second") { CHECK(of(23) == 24); }
}
TEMPLATE_TEST_CASE("types", "", int, (pair_of<1, 2>)) { CHECK(sizeof(TestType) == 100); }
using list = std::tuple<char, double>;
TEMPLATE_LIST_TEST_CASE("list", "", list) { CHECK(sizeof(TestType) == 200); }
TEST_CASE("passes") {
  CHECK(of(25) == 25);
  WARN("a warning " << 26);
  STATIC_REQUIRE(sizeof(char) == 1);
  STATIC_REQUIRE_FALSE(sizeof(char) == 2);
  CHECK_NOTHROW(of(27));
  CHECK_THROWS(throw std::runtime_error("expected"));
  SUCCEED();
  CHECK_THROWS_AS(throw std::runtime_error("expected"), std::exception);
}
