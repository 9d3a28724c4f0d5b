// SPDX-License-Identifier: MIT
// Whether views share memory, against every pair of elements.
#include <giwa/numeric/overlap.hpp>

#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {

using giwa::int64;
using giwa::tensor_view;

template <class T, class U>
bool share(const tensor_view<T, 3>& a, const tensor_view<U, 3>& b) {
  std::vector<char> touched(1 << 16);
  const auto base = reinterpret_cast<std::uintptr_t>(a.data()) - (1 << 15);
  const auto walk = [](const auto& v, auto visit) {
    for (int64 i = 0; i < v.extent(0); ++i)
      for (int64 j = 0; j < v.extent(1); ++j)
        for (int64 k = 0; k < v.extent(2); ++k)
          for (std::size_t byte = 0; byte < sizeof(*v.data()); ++byte)
            visit(reinterpret_cast<std::uintptr_t>(&v(i, j, k)) + byte);
  };
  walk(a, [&](std::uintptr_t p) { touched[p - base] = 1; });
  bool found = false;
  walk(b, [&](std::uintptr_t p) { found = found || touched[p - base] != 0; });
  return found;
}

}  // namespace

TEST_CASE("overlap is exact for arrays whose elements lie apart") {
  std::vector<int> memory(8192);
  giwa_test::random_sequence random(7);
  int shared = 0, apart = 0, wrong = 0;
  for (int round = 0; round < 4000; ++round) {
    int64 sizes[3], strides[3], stride = 1 + random.below(3);
    int order[3] = {0, 1, 2};
    std::swap(order[0], order[random.below(3)]);
    std::swap(order[1], order[1 + random.below(2)]);
    for (const int d : order) {
      sizes[d] = 1 + random.below(5);
      strides[d] = random.below(2) == 0 ? stride : -stride;
      stride *= sizes[d] + random.below(3);
    }
    int* const data = memory.data() + 4096;
    const tensor_view<int, 3> a(data, {sizes[0], sizes[1], sizes[2]}, {strides[0], strides[1], strides[2]});
    int* const other = data + (random.below(2) == 0 ? random.below(40) - 20 : random.below(600) - 300);
    const tensor_view<int, 3> b(other, a.extents(), a.strides());
    const bool truth = share(a, b);
    (truth ? shared : apart) += 1;
    wrong += giwa::detail::overlap(a, b) == truth ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(shared > 500);
  CHECK(apart > 500);
}

TEST_CASE("overlap of other strides or sizes is never missed") {
  std::vector<int> memory(8192);
  giwa_test::random_sequence random(8);
  int missed = 0, apart = 0;
  for (int round = 0; round < 2000; ++round) {
    const giwa::index<3> sizes{1 + random.below(4), 1 + random.below(4), 1 + random.below(4)};
    const auto stride = [&] { return random.below(21) - 10; };
    int* const data = memory.data() + 4096;
    const tensor_view<int, 3> a(data, sizes, {stride(), stride(), stride()});
    const tensor_view<short, 3> b(reinterpret_cast<short*>(data) + random.below(400) - 200, sizes,
                                  {stride(), stride(), stride()});
    const bool found = giwa::detail::overlap(a, b);
    missed += share(a, b) && !found ? 1 : 0;
    apart += found ? 0 : 1;
  }
  CHECK(missed == 0);
  CHECK(apart > 200);
}

TEST_CASE("columns side by side do not overlap") {
  float memory[2000];
  const tensor_view<float, 2> left(memory, {10, 100}, {200, 1}), right(memory + 100, {10, 100}, {200, 1});
  CHECK_FALSE(giwa::detail::overlap(left, right));
  const tensor_view<float, 2> shifted(memory + 99, {10, 100}, {200, 1});
  CHECK(giwa::detail::overlap(left, shifted));
}

TEST_CASE("views of other strides that touch end to begin are apart") {
  float memory[64];
  const tensor_view<float, 2> a(memory + 16, {4, 4}, {4, 1});  // floats 16 to 31
  const auto meet = [&](const tensor_view<float, 2>& b) {
    CHECK(giwa::detail::overlap(a, b) == giwa::detail::overlap(b, a));
    return giwa::detail::overlap(a, b);
  };
  for (const int64 stride :
       {1, 2, -1}) {  // of the last dimension, whose elements begin `first` floats from the address
    const int64 reach = 3 * stride, first = stride < 0 ? -reach : 0, floats = 3 * 8 + (stride < 0 ? -reach : reach) + 1;
    const auto at = [&](int64 begin) { return tensor_view<float, 2>(memory + begin + first, {4, 4}, {8, stride}); };
    CHECK_FALSE(meet(at(32)));
    CHECK(meet(at(31)));
    CHECK_FALSE(meet(at(16 - floats)));
    CHECK(meet(at(17 - floats)));
  }
}

TEST_CASE("one element shares memory, and no elements share none") {
  float memory[8];
  using giwa::detail::overlap;
  const tensor_view<float, 1> one(memory + 3, {1}), next(memory + 4, {1}), none(memory + 3, {0});
  CHECK(overlap(one, one));
  CHECK_FALSE(overlap(one, next));
  CHECK_FALSE(overlap(none, none));
}

// In constant expressions, where an overflow does not compile.
TEST_CASE("sizes, strides and distances near the ends of int64 do not overflow") {
  using giwa::index, giwa::detail::steps_meet;
  constexpr int64 most = giwa::max_int64, least = -most - 1;
  // Strides that no memory has count as shared.
  static_assert(steps_meet<1>({2}, {most - 3}, 0, 8, 4));
  static_assert(steps_meet<1>({2}, {most / 2 + 1}, 0, least, 4));
  static_assert(steps_meet<2>({2, 2}, {most / 2 - 8, most / 2 - 8}, 0, 0, 4));
  static_assert(steps_meet<1>({most}, {1}, 0, most, 1));
  // The dimensions after a step reach one byte less than twice the step: rows are mixed, and the answer is exact.
  static_assert(!steps_meet<2>({2, 2}, {8, 12}, 0, 16, 4) && steps_meet<2>({2, 2}, {8, 12}, 0, 4, 4));
  // Below that the answer is exact, at any distance.
  constexpr int64 step = most / 4;
  static_assert(!steps_meet<1>({2}, {step}, 0, most, 4));
  static_assert(!steps_meet<1>({2}, {step}, 0, least, 4));
  static_assert(!steps_meet<1>({2}, {step}, 0, step - 4, 4));
  static_assert(steps_meet<1>({2}, {step}, 0, step - 3, 4));
  static_assert(steps_meet<1>({2}, {step}, 0, 3 - step, 4));
  static_assert(!steps_meet<1>({2}, {step}, 0, 2 * step, 4));
  static_assert(!steps_meet<1>({step}, {1}, 0, least, 1));
  static_assert(!steps_meet<1>({step}, {1}, 0, most, 1));
  static_assert(steps_meet<1>({step}, {1}, 0, step - 1, 1));
  static_assert(!steps_meet<1>({step}, {1}, 0, step, 1));

  // The farthest strides that check() lets pass.
  double x = 0;
  const tensor_view<double, 1> far(&x, {2}, {(most - 8) / 8});
  REQUIRE(far.check("far").ok());
  CHECK_FALSE(tensor_view<double, 1>(&x, {2}, {(most - 8) / 8 + 1}).check("far").ok());
  CHECK(giwa::detail::overlap(far, far));
  CHECK(giwa::detail::check_written(far, "far").ok());
}
