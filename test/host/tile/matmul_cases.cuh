// SPDX-License-Identifier: MIT
// Matrix products of the examples for the tests on the host executor and on a GPU: sizes, strides and places of all kinds.
#ifndef GIWA_TEST_HOST_TILE_MATMUL_CASES_CUH
#define GIWA_TEST_HOST_TILE_MATMUL_CASES_CUH

#include <giwa/giwa.cuh>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../../../examples/matmul/naive.cuh"
#include "../../../examples/matmul/register_tile.cuh"
#include "../../../examples/matmul/shared_tile.cuh"
#include "../../../examples/matmul/wgmma.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace giwa_test {

using giwa::bf16;
using giwa::fp16;
using giwa::int64;

/// A matrix inside memory that holds NaN elsewhere.
template <class T>
struct placed_matrix {
  giwa::index<2> extents, strides;
  int64 first;  // element (0, 0) in memory
  std::vector<T> memory;

  placed_matrix(int64 rows, int64 columns, int layout, random_sequence& random) : extents{rows, columns} {
    const int64 pads[] = {0, 0, 1, 2, 8}, pad = pads[random.below(5)];
    const int64 width = std::max<int64>(1, columns), height = std::max<int64>(1, rows);
    if (layout == 0) strides = {width + pad, 1};
    if (layout == 1) strides = {1, height + pad};     // column-major
    if (layout == 2) strides = {3 * width + pad, 3};  // no unit stride
    if (layout == 3) strides = {-(width + pad), 1};   // bottom row first
    const int64 rows_back = layout == 3 ? (height - 1) * (width + pad) : 0;
    first = 16 + rows_back + (random.below(2) == 0 ? 0 : random.below(8));
    const int64 reach = std::max<int64>(0, (height - 1) * std::max<int64>(0, strides[0])) + (width - 1) * strides[1];
    memory.assign(static_cast<std::size_t>(first + reach + 16), nan());
  }
  static T nan() { return giwa::convert<T>{}(std::nan("")); }
  T& at(int64 row, int64 column) {
    return memory[static_cast<std::size_t>(first + row * strides[0] + column * strides[1])];
  }
  /// Small integers, whose products and sums are exact.
  void fill(random_sequence& random) {
    for (int64 row = 0; row < extents[0]; ++row)
      for (int64 column = 0; column < extents[1]; ++column)
        at(row, column) = giwa::convert<T>{}(static_cast<float>(random.below(9) - 4));
  }
};

/// Depends on each of its arguments.
struct tilted {
  GIWA_HOST_DEVICE float operator()(float sum, int64 row, int64 column) const {
    return 2 * sum + static_cast<float>(row % 8) - static_cast<float>(3 * (column % 4));
  }
};

enum class step { naive, shared_tile, register_tile, small_register_tile, mma, wgmma };

template <step Step, class Where, class T, class U>
giwa::status multiply(const Where& where, const giwa::tensor_view<const T, 2>& a,
                      const giwa::tensor_view<const T, 2>& b, const giwa::tensor_view<U, 2>& c) {
  if constexpr (Step == step::naive) return matmul::naive(where, a, b, c, tilted{});
  if constexpr (Step == step::shared_tile) return matmul::shared_tile(where, a, b, c, tilted{});
  if constexpr (Step == step::register_tile) return matmul::register_tile(where, a, b, c, tilted{});
  if constexpr (Step == step::small_register_tile)
    return matmul::register_tile<matmul::tiling<16, 16, 112, 8, 8, 4>>(where, a, b, c, tilted{});
  if constexpr (Step == step::mma) return matmul::mma(where, a, b, c, tilted{});
  if constexpr (Step == step::wgmma) return matmul::wgmma(where, a, b, c, tilted{});
}

/// Machine::run(a, b, c, call) calls call(where, a's memory, b's, c's), on copies if it must, and brings c back.
template <step Step, class T, class U, class Machine>
bool product_is_exact(const Machine& machine, int64 m, int64 n, int64 k, int layout_a, int layout_b, int layout_c,
                      random_sequence& random) {
  placed_matrix<T> a(m, k, layout_a, random), b(k, n, layout_b, random);
  placed_matrix<U> c(m, n, layout_c, random);
  a.fill(random);
  b.fill(random);
  const std::vector<U> poison = c.memory;
  const bool ran = machine.run(a.memory, b.memory, c.memory, [&](const auto& where, const T* pa, const T* pb, U* pc) {
    return multiply<Step, std::remove_cvref_t<decltype(where)>, T, U>(where, {pa + a.first, a.extents, a.strides},
                                                                      {pb + b.first, b.extents, b.strides},
                                                                      {pc + c.first, c.extents, c.strides});
  });
  if (!ran) return false;
  std::vector<float> plain_a, plain_b;  // row-major and column-major: read along k
  for (int64 row = 0; row < m; ++row)
    for (int64 i = 0; i < k; ++i) plain_a.push_back(giwa::convert<float>{}(a.at(row, i)));
  for (int64 column = 0; column < n; ++column)
    for (int64 i = 0; i < k; ++i) plain_b.push_back(giwa::convert<float>{}(b.at(i, column)));
  placed_matrix<U> expected = c;
  expected.memory = poison;
  for (int64 row = 0; row < m; ++row)
    for (int64 column = 0; column < n; ++column) {
      const float *of_a = plain_a.data() + row * k, *of_b = plain_b.data() + column * k;
      float sum = 0;
      for (int64 i = 0; i < k; ++i) sum += of_a[i] * of_b[i];
      expected.at(row, column) = giwa::convert<U>{}(tilted{}(sum, row, column));
    }
  return std::memcmp(c.memory.data(), expected.memory.data(), c.memory.size() * sizeof(U)) == 0;
}

template <step Step, class T, class U, class Machine>
void check_matmul(const Machine& machine, int cases, int64 largest) {
  random_sequence random(2026);
  const int64 sizes[] = {0, 1, 2, 7, 16, 31, 32, 33, 64, 100, 128, 129, 150};
  for (int i = 0; i < cases; ++i) {
    const auto size = [&] {
      return std::min(largest, random.below(3) == 0 ? random.below(largest) : sizes[random.below(13)]);
    };
    const int64 m = i == 0 ? 1 : size(), n = i == 0 ? 1 : size(), k = i == 1 ? 0 : i == 0 ? 1 : size();
    const auto layout = [&] { return random.below(2) == 0 ? 0 : static_cast<int>(random.below(4)); };
    const int layout_a = layout(), layout_b = layout(), layout_c = layout();
    CAPTURE(i, m, n, k, layout_a, layout_b, layout_c);
    REQUIRE(product_is_exact<Step, T, U>(machine, m, n, k, layout_a, layout_b, layout_c, random));
  }
}

/// What must be refused, and what must not.
template <step Step, class Where>
void check_refusals(const Where& where) {
  float x[64] = {};
  const giwa::tensor_view<const float, 2> a{x, {2, 3}}, b{x, {3, 4}}, none{nullptr, {2, 3}}, wrong{x, {4, 4}};
  const giwa::tensor_view<float, 2> c{x + 32, {2, 4}};
  const auto call = [&](const auto& of_a, const auto& of_b, const auto& of_c) {
    return multiply<Step, Where, float, float>(where, of_a, of_b, of_c);
  };
  const giwa::status null = call(none, b, c);
  CHECK(std::string_view(null.argument) == "a");
  const giwa::status k = call(a, wrong, c);
  CHECK((std::string_view(k.argument) == "b" && k.expected == 3 && k.got == 4));
  const giwa::status rows = call(a, b, giwa::tensor_view<float, 2>{x + 32, {3, 4}});
  CHECK((std::string_view(rows.argument) == "c" && rows.expected == 2 && rows.got == 3));
  const giwa::status columns = call(a, b, giwa::tensor_view<float, 2>{x + 32, {2, 5}});
  CHECK((std::string_view(columns.argument) == "c" && columns.expected == 4 && columns.got == 5));
  CHECK_FALSE(call(a, b, giwa::tensor_view<float, 2>{x + 32, {-2, 4}}).ok());
  using view = giwa::tensor_view<const float, 2>;
  CHECK(call(view{nullptr, {0, 3}}, b, giwa::tensor_view<float, 2>{nullptr, {0, 4}}).ok());  // nothing to do
}

}  // namespace giwa_test

#endif
