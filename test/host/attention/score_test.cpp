// SPDX-License-Identifier: MIT
// Score modifiers against their formulas in double, their order, and what they refuse.
#include <giwa/attention/append/rotated_queries.hpp>
#include <giwa/attention/problem/bias_gradient.hpp>
#include <giwa/attention/problem/dropout.hpp>
#include <giwa/attention/problem/score.hpp>
#include <giwa/attention/problem/score_gradient.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace {

using giwa::attention_coord;
using giwa::int64;
using giwa::tensor_view;

constexpr giwa::attention_sizes sizes{2, 3, 4, 5};

bool refused(const giwa::status& s, const std::string& argument, giwa::bound relation, int64 expected, int64 got) {
  return s.code == giwa::status_code::invalid_argument && s.argument == argument && s.relation == relation &&
         s.expected == expected && s.got == got;
}

struct without_slope {
  float operator()(float score, attention_coord) const { return score; }
};
template <class First, class Second>
using both = giwa::then<First, Second>;
using capped = giwa::softcap;
using dropped = giwa::dropout<>;
using rotated = giwa::rotated_queries<giwa::rotary_base>;

using namespace giwa::detail;

// then() has a slope if both of its parts have.
static_assert(has_slope<both<capped, capped>> && has_slope<both<both<capped, capped>, giwa::plain_score>>);
static_assert(!has_slope<both<capped, without_slope>> && !has_slope<both<without_slope, capped>>);
static_assert(!has_slope<both<both<capped, without_slope>, capped>> && !has_slope<both<without_slope, without_slope>>);

// A dropout and a rotation are found at every depth, on both sides.
static_assert(!hides_dropout<dropped> && !hides_dropout<both<capped, capped>> && !hides_rotation<both<capped, capped>>);
static_assert(hides_dropout<both<dropped, capped>> && hides_dropout<both<capped, dropped>>);
static_assert(hides_dropout<both<both<dropped, capped>, capped>> && hides_dropout<both<both<capped, dropped>, capped>>);
static_assert(hides_dropout<both<capped, both<dropped, capped>>> && hides_dropout<both<capped, both<capped, dropped>>>);
static_assert(!hides_rotation<rotated> && !hides_rotation<both<capped, both<capped, dropped>>>);
static_assert(hides_rotation<both<rotated, capped>> && hides_rotation<both<capped, rotated>>);
static_assert(hides_rotation<both<both<rotated, capped>, capped>> &&
              hides_rotation<both<both<capped, rotated>, capped>>);
static_assert(hides_rotation<both<capped, both<rotated, capped>>> &&
              hides_rotation<both<capped, both<capped, rotated>>>);

}  // namespace

TEST_CASE("softcap is cap tanh(x / cap)") {
  double worst = 0;
  for (const float cap : {0.5f, 1.0f, 30.0f, 50.0f, 1e6f})
    for (int i = -4000; i <= 4000; ++i) {
      const float x = cap * static_cast<float>(i) * 0.005f;
      const double exact = static_cast<double>(cap) * std::tanh(static_cast<double>(x) / static_cast<double>(cap));
      const double off = std::abs(static_cast<double>(giwa::softcap{cap}(x, {})) - exact);
      worst = std::max(worst, off / static_cast<double>(cap));
    }
  CHECK(worst < 4 * 0x1p-24);
  const float infinity = HUGE_VALF;
  CHECK(giwa::softcap{5}(infinity, {}) == 5);
  CHECK(giwa::softcap{5}(-infinity, {}) == -5);
  CHECK(giwa::softcap{5}(-3e38f, {}) == -5);
  CHECK(giwa::softcap{5}(0, {}) == 0);
  CHECK(std::isnan(giwa::softcap{5}(NAN, {})));
}

TEST_CASE("softcap refuses a cap that is not above 0") {
  for (const float cap : {0.0f, -1.0f, NAN}) CHECK(giwa::softcap{cap}.check(sizes).argument == std::string("softcap"));
  CHECK(giwa::softcap{1e-3f}.check(sizes).ok());
  CHECK_FALSE(giwa::then(giwa::plain_score{}, giwa::softcap{-1}).check(sizes).ok());
}

TEST_CASE("alibi falls off on both sides of the diagonal") {
  const float slopes[4] = {0.5f, 0.25f, 2.0f, 4.0f};
  const giwa::alibi shared{slopes}, own{slopes, 2};
  for (int key = 0; key < 9; ++key) {
    CHECK(shared(10, attention_coord{1, 1, 2, key, 4}) == 10 - 0.25f * static_cast<float>(std::abs(key - 4)));
    CHECK(own(10, attention_coord{1, 1, 2, key, 4}) == 10 - 4.0f * static_cast<float>(std::abs(key - 4)));
  }
}

TEST_CASE("a bias is read where it is given and serves where its size is 1") {
  std::vector<giwa::fp16> memory(2 * 3 * 4 * 5);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = giwa::convert<giwa::fp16>{}(static_cast<float>(i));
  const giwa::bias whole{tensor_view<giwa::fp16, 4>(memory.data(), {2, 3, 4, 5})};
  CHECK(whole(1, attention_coord{1, 2, 3, 4, 0}) == 120);
  CHECK(whole(1, attention_coord{0, 0, 0, 0, 9}) == 1);
  const giwa::bias row{tensor_view<const giwa::fp16, 4>(memory.data() + 4, {1, 1, 1, 5}, {999, 999, 999, -1})};
  CHECK(row(0, attention_coord{1, 2, 3, 4, 0}) == 0);
  CHECK(row(0, attention_coord{1, 2, 3, 1, 0}) == 3);
  const giwa::bias still{tensor_view<const giwa::fp16, 4>(memory.data() + 7, {2, 3, 4, 5}, {0, 0, 0, 0})};
  CHECK(still(0, attention_coord{1, 2, 3, 1, 0}) == 7);
}

TEST_CASE("a bias of other sizes is refused") {
  const float x[120] = {};
  const auto status_of = [&](const giwa::index<4>& shape, const giwa::attention_sizes& s) {
    return giwa::bias(tensor_view<const float, 4>(x, shape)).check(s);
  };
  CHECK(status_of({2, 3, 4, 5}, sizes).ok());
  CHECK(status_of({1, 1, 1, 1}, sizes).ok());
  CHECK(refused(status_of({3, 1, 1, 1}, sizes), "bias", giwa::bound::exactly, 2, 3));
  CHECK(refused(status_of({2, 2, 4, 5}, sizes), "bias", giwa::bound::exactly, 3, 2));
  CHECK(refused(status_of({2, 3, 4, 4}, sizes), "bias", giwa::bound::exactly, 5, 4));
  CHECK(refused(status_of({2, 3, 1, 5}, {2, 3, -1, -1}), "bias", giwa::bound::exactly, 1, 5));
  CHECK(status_of({2, 3, 1, 1}, {2, 3, -1, -1}).ok());
  CHECK(giwa::bias(tensor_view<const float, 4>(nullptr, {2, 3, 4, 5})).check(sizes).argument == std::string("bias"));
}

TEST_CASE("a bias with a gradient has the sizes of the call, which may be 0, and no packed sequences") {
  float x[120] = {}, dx[120] = {};
  const auto status_of = [&](const giwa::index<4>& shape, const giwa::attention_sizes& s) {
    return giwa::bias_with_gradient(tensor_view<const float, 4>(x, shape), tensor_view<float, 4>(dx, shape)).check(s);
  };
  CHECK(status_of({2, 3, 4, 5}, sizes).ok());
  CHECK(status_of({1, 1, 4, 5}, sizes).ok());
  CHECK(status_of({2, 3, 0, 5}, {2, 3, 0, 5}).ok());
  CHECK(status_of({2, 3, 4, 0}, {2, 3, 4, 0}).ok());
  CHECK(status_of({2, 3, 1, 5}, sizes).argument == std::string("bias gradient"));
  CHECK(status_of({2, 3, 1, 1}, {2, 3, -1, -1}).argument == std::string("bias gradient"));
}

TEST_CASE("caps up to their limits") {
  for (const float cap : {1e-30f, 1e30f}) CHECK(giwa::softcap{cap}.check(sizes).ok());
  for (const float cap : {std::nextafter(1e-30f, 0.0f), std::nextafter(1e30f, HUGE_VALF), 0.0f, -1.0f, NAN})
    CHECK(giwa::softcap{cap}.check(sizes).argument == std::string("softcap"));
}

TEST_CASE("then: the first, and the second of what it makes") {
  const float shift[1] = {3};
  const giwa::bias plus{tensor_view<const float, 4>(shift, {1, 1, 1, 1})};
  const float cap_first = giwa::then(giwa::softcap{2}, plus)(100, {});
  const float bias_first = giwa::then(plus, giwa::softcap{2})(100, {});
  CHECK(cap_first == 5);
  CHECK(bias_first == 2);
}
