// SPDX-License-Identifier: MIT
// Matrix products of the examples for the tests on the host executor and on a GPU: sizes, strides and places of all kinds.
#ifndef GIWA_TEST_HOST_TILE_MATMUL_CASES_CUH
#define GIWA_TEST_HOST_TILE_MATMUL_CASES_CUH

#include <giwa/giwa.cuh>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../../../examples/matmul/fp32.cuh"
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

enum class step { naive, shared_tile, register_tile, small_register_tile, mma, wgmma, fp32 };

/// Step 6 with a workspace that is made for the call, and given back in the stream's order.
template <class Epilogue = matmul::identity>
giwa::status multiply_fp32(cudaStream_t stream, const giwa::tensor_view<const float, 2>& a,
                           const giwa::tensor_view<const float, 2>& b, const giwa::tensor_view<float, 2>& c,
                           const Epilogue& epilogue = {}) {
  const int64 bytes = matmul::fp32_workspace_bytes(a.extent(0), b.extent(1), a.extent(1));
  giwa::result<giwa::device_array<unsigned char>> workspace =
      giwa::device_array<unsigned char>::allocate(stream, bytes);
  if (!workspace.ok()) return workspace.state;
  return matmul::fp32(stream, a, b, c, workspace.value, epilogue);
}

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
  if constexpr (Step == step::fp32) return multiply_fp32(where, a, b, c, tilted{});
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

/// Inputs on which a product in fp32 is held to fp32's digits.
enum class range {
  plain,       // [-1, 1)
  positive,    // [1/2, 1), whose sums show what is always cut
  wide_lines,  // rows of a and columns of b of all sizes
  wide,        // elements of a line 2^20 apart, too
  largest,     // up to the largest float, times the smallest
};

/// Fills a's rows or b's columns.
inline void fill(placed_matrix<float>& x, range r, matmul::lines lines, random_sequence& random) {
  const bool of_a = lines == matmul::lines::rows;
  std::vector<int> exponent;
  for (int64 i = 0; i < x.extents[of_a ? 0 : 1]; ++i)
    exponent.push_back(r == range::wide_lines || r == range::wide ? static_cast<int>(random.below(81)) - 40
                       : r == range::largest                      ? (of_a ? 127 : -127)
                                                                  : 0);
  for (int64 row = 0; row < x.extents[0]; ++row)
    for (int64 column = 0; column < x.extents[1]; ++column) {
      const float u = static_cast<float>(random.below(1 << 24)) * 0x1p-23f - 1;
      const int within = r == range::wide ? -static_cast<int>(random.below(21)) : 0;
      x.at(row, column) = std::ldexp(r == range::positive ? (u + 3) / 4 : u,
                                     exponent[static_cast<std::size_t>(of_a ? row : column)] + within);
    }
}

/// Whether c (m, n) = a b to 2^-19 of the sum of the products' sizes, and 2^-38 of the largest of a row or column times
/// the other's elements, see fp32.cuh; the smallest float is for a c that small itself.
template <class Of>
bool near_in_fp32(placed_matrix<float>& a, placed_matrix<float>& b, const Of& c) {
  const int64 m = a.extents[0], n = b.extents[1], k = a.extents[1];
  std::vector<double> row(static_cast<std::size_t>(k));
  std::vector<double> plain_b;  // column-major
  for (int64 j = 0; j < n; ++j)
    for (int64 l = 0; l < k; ++l) plain_b.push_back(static_cast<double>(b.at(l, j)));
  for (int64 i = 0; i < m; ++i) {
    double largest_a = 0, sum_a = 0;
    for (int64 l = 0; l < k; ++l) {
      const double x = row[static_cast<std::size_t>(l)] = static_cast<double>(a.at(i, l));
      largest_a = std::max(largest_a, std::abs(x)), sum_a += std::abs(x);
    }
    for (int64 j = 0; j < n; ++j) {
      const double* const column = plain_b.data() + j * k;
      double sum = 0, sizes = 0, largest_b = 0, sum_b = 0;
      for (int64 l = 0; l < k; ++l) {
        const double y = column[l], product = row[static_cast<std::size_t>(l)] * y;
        sum += product, sizes += std::abs(product);
        largest_b = std::max(largest_b, std::abs(y)), sum_b += std::abs(y);
      }
      const double bound = 0x1p-19 * sizes + 0x1p-38 * (largest_a * sum_b + largest_b * sum_a) + 0x1p-149;
      if (!(std::abs(static_cast<double>(c(i, j)) - sum) <= bound)) {
        UNSCOPED_INFO("element (" << i << ", " << j << "): " << c(i, j) << " where it is " << sum << ", allowed "
                                  << bound);
        return false;
      }
    }
  }
  return true;
}

}  // namespace giwa_test

#endif
