// SPDX-License-Identifier: MIT
// The matrix products of the examples on the host executor.
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "matmul_cases.cuh"
#include "support/environment.hpp"

using namespace giwa_test;

namespace {

struct on_the_host {
  template <class T, class U, class Call>
  bool run(const std::vector<T>& a, const std::vector<T>& b, std::vector<U>& c, const Call& call) const {
    return call(giwa::host, a.data(), b.data(), c.data()).ok();
  }
};

template <step Step>
void check_types() {
  const int cases = small_mode() ? 5 : 25;  // with edges, a K of 0, several tiles and other layouts among the first
  check_matmul<Step, float, float>(on_the_host{}, cases, 150);
  check_matmul<Step, fp16, fp16>(on_the_host{}, cases, 150);
  check_matmul<Step, bf16, float>(on_the_host{}, small_mode() ? 5 : 15, 150);
}

/// A matrix whose rows or columns step 6 has split on the host executor.
template <matmul::lines Lines>
class split_matrix {
 public:
  explicit split_matrix(placed_matrix<float>& x)
      : rows_(x.extents[0]),
        columns_(x.extents[1]),
        stride_(matmul::fp32_workspace::stride(columns_)),
        memory_(static_cast<std::size_t>(2 * rows_ * stride_ + 8)),
        largest_(static_cast<std::size_t>(giwa::round_up(Lines == matmul::lines::rows ? rows_ : columns_, 4)), 0.0f) {
    const auto past = reinterpret_cast<std::uintptr_t>(memory_.data()) % 16;  // pieces begin at a multiple of 16 bytes
    first_ = memory_.data() + (16 - past) % 16 / sizeof(fp16);
    const giwa::tensor_view<const float, 2> view{x.memory.data() + x.first, x.extents, x.strides};
    const giwa::tensor_view<fp16, 3> pieces(first_, {2, rows_, columns_}, {rows_ * stride_, stride_, 1});
    giwa::throw_if_failed(matmul::split_lines<Lines>(giwa::host, view, pieces, largest_.data()));
  }
  float largest(int64 line) const { return largest_[static_cast<std::size_t>(line)]; }
  double high(int64 row, int64 column) const { return giwa::convert<double>{}(first_[row * stride_ + column]); }
  double low(int64 row, int64 column) const {
    return giwa::convert<double>{}(first_[(rows_ + row) * stride_ + column]);
  }

 private:
  int64 rows_, columns_, stride_;
  std::vector<fp16> memory_;
  fp16* first_;
  std::vector<float> largest_;
};

/// What step 6 computes, but that products are summed exactly; or only the products of high pieces, as of plain fp16.
bool split_product_is_near(int64 m, int64 n, int64 k, range r, random_sequence& random, bool all_products = true) {
  const auto layout = [&] { return static_cast<int>(random.below(4)); };
  placed_matrix<float> a(m, k, layout(), random), b(k, n, layout(), random);
  fill(a, r, matmul::lines::rows, random);
  fill(b, r, matmul::lines::columns, random);
  const split_matrix<matmul::lines::rows> of_a(a);
  const split_matrix<matmul::lines::columns> of_b(b);
  for (int64 i = 0; i < m; ++i) {
    float largest = 0;
    for (int64 l = 0; l < k; ++l) largest = std::max(largest, std::abs(a.at(i, l)));
    if (of_a.largest(i) != largest) return false;
  }
  for (int64 j = 0; j < n; ++j) {
    float largest = 0;
    for (int64 l = 0; l < k; ++l) largest = std::max(largest, std::abs(b.at(l, j)));
    if (of_b.largest(j) != largest) return false;
  }
  return near_in_fp32(a, b, [&](int64 i, int64 j) {
    double sum = 0;
    for (int64 l = 0; l < k; ++l) {
      sum += of_a.high(i, l) * of_b.high(l, j);
      if (all_products) sum += of_a.high(i, l) * of_b.low(l, j) + of_a.low(i, l) * of_b.high(l, j);
    }
    return matmul::unscaled(static_cast<float>(sum), of_a.largest(i), of_b.largest(j));
  });
}

}  // namespace

TEST_CASE("step 6 of the matrix product splits a and b so that fp32's digits stay") {
  random_sequence random(2026);
  for (const range r : {range::plain, range::positive, range::wide_lines, range::wide, range::largest})
    for (const auto& [m, n, k] : {std::tuple<int64, int64, int64>{1, 1, 1},
                                  {5, 3, 2},
                                  {9, 17, 64},
                                  {40, 30, 300},
                                  {3, 515, 130},
                                  {70, 5, 67},
                                  {2, 2, 8197}})
      for (int i = 0; i < (small_mode() ? 1 : 4); ++i) {
        if (small_mode() && m * n * k > 1 << 14) continue;
        CAPTURE(static_cast<int>(r), m, n, k, i);
        REQUIRE(split_product_is_near(m, n, k, r, random));
      }
  if (small_mode()) return;
  REQUIRE_FALSE(split_product_is_near(40, 30, 300, range::plain, random, false));  // the bound tells fp16 from fp32
}

TEST_CASE("step 6 of the matrix product leaves nothing finite where an input is not") {
  random_sequence random(1);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")})
    for (const float other : {0.0f, 1.0f, std::numeric_limits<float>::max()}) {
      placed_matrix<float> x(6, 40, 0, random);
      for (int64 row = 0; row < 6; ++row)
        for (int64 column = 0; column < 40; ++column) x.at(row, column) = row == 2 && column == 33 ? bad : other;
      const split_matrix<matmul::lines::rows> rows(x);
      const split_matrix<matmul::lines::columns> columns(x);
      CHECK((std::isnan(rows.low(2, 33)) && std::isnan(columns.low(2, 33))));  // and so is each of its products
      CHECK((rows.largest(1) == other && std::isfinite(rows.high(1, 33)) && std::isfinite(columns.high(2, 32))));
    }
  CHECK(std::isnan(matmul::unscaled(std::nanf(""), 1, 1)));
}

TEST_CASE("sums lose their powers of two without a detour beyond the floats") {
  constexpr float most = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  for (const float x : {0.0f, 1.0f, -3.0f, 0x1.fffffep29f, 0x1p-48f, 0x1p61f})
    for (const float row : {0.0f, 1.0f, most, least, 0x1p-126f, 0x1p100f, 0x1p-100f})
      for (const float column : {0.0f, 1.0f, most, least, 0x1p-126f, 0x1p100f, 0x1p-100f}) {
        const double powers =
            static_cast<double>(giwa::power_of_two_for(row)) * static_cast<double>(giwa::power_of_two_for(column));
        CAPTURE(x, row, column);
        REQUIRE(matmul::unscaled(x, row, column) == static_cast<float>(static_cast<double>(x) / powers));
      }
}

TEST_CASE("step 6 of the matrix product says what workspace it takes") {
  CHECK(matmul::fp32_workspace_bytes(1, 1, 1) == 16 + 16 + 2 * 16 + 2 * 16);
  CHECK(matmul::fp32_workspace_bytes(100, 201, 30) == 400 + 816 + 4 * 100 * 32 + 4 * 30 * 208);
  CHECK(matmul::fp32_workspace_bytes(0, 0, 0) == 0);
  constexpr int64 huge = giwa::max_int64;
  CHECK(matmul::fp32_workspace_bytes(huge, 1, 1) == huge);
  CHECK(matmul::fp32_workspace_bytes(1, 1, huge) == huge);
  CHECK(matmul::fp32_workspace_bytes(int64{1} << 31, int64{1} << 31, int64{1} << 31) == huge);
}

TEST_CASE("step 1 of the matrix product is exact on the CPU") { check_types<step::naive>(); }
TEST_CASE("step 2 of the matrix product is exact on the host executor") { check_types<step::shared_tile>(); }
TEST_CASE("step 3 of the matrix product is exact on the host executor") { check_types<step::register_tile>(); }
TEST_CASE("step 3 of the matrix product is exact in small tiles") { check_types<step::small_register_tile>(); }

TEST_CASE("matrix products refuse sizes that do not agree") {
  check_refusals<step::naive>(giwa::host);
  check_refusals<step::shared_tile>(giwa::host);
  check_refusals<step::register_tile>(giwa::host);
}
