// SPDX-License-Identifier: MIT
// The views that a row softmax accepts, and where rows begin after dimensions are merged.
#include <giwa/softmax/problem.hpp>

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::int64;
using giwa::tensor_view;

TEST_CASE("out may be in itself, or interleave with it, but not overlap it") {
  float memory[2000];
  const tensor_view<float, 2> left(memory, {10, 100}, {200, 1}), right(memory + 100, {10, 100}, {200, 1});
  CHECK(giwa::detail::check_softmax(left, left).ok());
  CHECK(giwa::detail::check_softmax(left, right).ok());
  const tensor_view<float, 2> shifted(memory + 99, {10, 100}, {200, 1});
  CHECK(giwa::detail::check_softmax(left, shifted).argument == std::string("out"));
}

TEST_CASE("in place is the same element size and the same strides") {
  alignas(8) float memory[64]{};
  const auto halves = reinterpret_cast<giwa::fp16*>(memory);
  const tensor_view<const giwa::fp16, 2> in(halves, {4, 8});
  using giwa::detail::check_softmax;
  CHECK(check_softmax(in, tensor_view<float, 2>(memory, {4, 8})).argument == std::string("out"));
  CHECK(check_softmax(in, tensor_view<giwa::bf16, 2>(reinterpret_cast<giwa::bf16*>(memory), {4, 8})).ok());
  CHECK(check_softmax(in, tensor_view<giwa::fp16, 2>(halves, {4, 8}, {16, 1})).argument == std::string("out"));
  CHECK(check_softmax(in, tensor_view<giwa::fp16, 2>(halves, {4, 8}, {8, 2})).argument == std::string("out"));
  CHECK(check_softmax(tensor_view<const giwa::fp16, 2>(halves, {1, 8}),
                      tensor_view<giwa::fp16, 2>(halves, {1, 8}, {3, 1}))
            .ok());  // a size of 1 has no stride
}

TEST_CASE("views of other sizes, and views that are none") {
  float memory[64];
  const tensor_view<const float, 2> in(memory, {4, 4});
  const auto says = [](const giwa::status& s, const std::string& argument, int64 expected, int64 got) {
    return !s.ok() && s.argument == argument && s.expected == expected && s.got == got;
  };
  using giwa::detail::check_softmax;
  CHECK(says(check_softmax(in, tensor_view<float, 2>(memory + 16, {4, 3})), "out", 4, 3));
  CHECK(says(check_softmax(in, tensor_view<float, 2>(memory + 16, {3, 4})), "out", 4, 3));
  CHECK(says(check_softmax(in, tensor_view<float, 2>(nullptr, {4, 4})), "out", 0, 0));
  CHECK(says(check_softmax(tensor_view<const float, 2>(nullptr, {4, 4}), tensor_view<float, 2>(memory, {4, 4})), "in",
             0, 0));
}

TEST_CASE("elements of out must not overlap each other") {
  float in[16], out[16];
  const tensor_view<float, 2> x(in, {4, 4});
  CHECK(giwa::detail::check_softmax(x, tensor_view<float, 2>(out, {4, 4})).ok());
  CHECK(giwa::detail::check_softmax(x, tensor_view<float, 2>(out, {4, 4}, {2, 1})).argument == std::string("out"));
}

TEST_CASE("rows of merged dimensions begin where the view has them") {
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
