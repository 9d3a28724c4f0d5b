// SPDX-License-Identifier: MIT
// Whether views share memory, against every pair of elements; and where a merged map says that rows begin.
#include <giwa/softmax/problem.hpp>

#include <string>
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
  CHECK(giwa::detail::check_softmax(left, right).ok());
  const tensor_view<float, 2> shifted(memory + 99, {10, 100}, {200, 1});
  CHECK(giwa::detail::check_softmax(left, shifted).argument == std::string("out"));
  CHECK(giwa::detail::check_softmax(left, left).ok());
}

TEST_CASE("the rows of merged dimensions begin where the view says") {
  giwa_test::random_sequence random(9);
  std::vector<int> memory(100'000);
  int merged = 0, wrong = 0;
  for (int round = 0; round < 2000; ++round) {
    giwa::index<4> sizes{}, in_strides{}, out_strides{};
    int64 in = 7, out = 7;
    for (int d = 3; d >= 0; --d) {
      sizes[d] = 1 + random.below(4);
      in_strides[d] = in;
      out_strides[d] = out;
      in *= sizes[d];
      out *= sizes[d];
      if (random.below(3) == 0) in += 5;
      if (random.below(3) == 0) out = -out;
    }
    int* const middle = memory.data() + memory.size() / 2;
    const tensor_view<const int, 4> a(middle, sizes, in_strides);
    const tensor_view<int, 4> b(middle, sizes, out_strides);
    const auto map = giwa::detail::row_map::of(a, b);
    merged += map.dimensions < 3 ? 1 : 0;
    int64 row = 0;
    for (int64 i = 0; i < sizes[0]; ++i)
      for (int64 j = 0; j < sizes[1]; ++j)
        for (int64 k = 0; k < sizes[2]; ++k) {
          const auto at = map(row++);
          wrong += middle + at.in == &a(i, j, k, 0) && middle + at.out == &b(i, j, k, 0) ? 0 : 1;
        }
    wrong += map.rows == row ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(merged > 500);
}
