// SPDX-License-Identifier: MIT
// softmax on the CPU against the double reference: lengths, layouts, types, in place, refusals, the tolerance.
#include <giwa/base/throw.hpp>
#include <giwa/host.hpp>

#include <algorithm>
#include <cstring>
#include <string>

#include "host/softmax/reference.hpp"
#include "support/catch.hpp"

namespace {

using giwa::bf16;
using giwa::fp16;
using giwa::int64;
using giwa::softmax;
using giwa::tensor_view;
using namespace giwa_test;

template <class T, class U>
void check(int64 rows, int64 columns, int64 row_stride, int64 column_stride) {
  const auto size = static_cast<std::size_t>((rows - 1) * std::abs(row_stride) + (columns - 1) * column_stride + 1);
  std::vector<T> in(size);
  std::vector<U> out(size);
  std::memset(static_cast<void*>(in.data()), 0xff, size * sizeof(T));
  std::memset(static_cast<void*>(out.data()), 0xff, size * sizeof(U));
  const std::size_t first = row_stride < 0 ? static_cast<std::size_t>((rows - 1) * -row_stride) : 0;
  const tensor_view<T, 2> x(in.data() + first, {rows, columns}, {row_stride, column_stride});
  const tensor_view<U, 2> y(out.data() + first, {rows, columns}, {row_stride, column_stride});
  for (int64 r = 0; r < rows; ++r) {
    const auto row = softmax_row<T>(columns, static_cast<int>(r));
    for (int64 c = 0; c < columns; ++c) x(r, c) = row[static_cast<std::size_t>(c)];
  }
  const giwa::status s = softmax(giwa::host, tensor_view<const T, 2>(x), y);
  INFO(giwa::format_status(s).c_str());
  REQUIRE(s.ok());
  int64 wrong = 0, written = 0;
  for (int64 r = 0; r < rows; ++r) {
    const auto expected = softmax_reference(in_double(softmax_row<T>(columns, static_cast<int>(r))));
    for (int64 c = 0; c < columns; ++c)
      wrong += softmax_agrees<T, U>(giwa::convert<double>{}(y(r, c)), expected[static_cast<std::size_t>(c)]) ? 0 : 1;
  }
  CAPTURE(rows, columns, row_stride, column_stride);
  CHECK(wrong == 0);
  for (int64 r = 0; r < rows; ++r)
    for (int64 c = 0; c < columns; ++c) {
      std::memset(static_cast<void*>(&y(r, c)), 0xff, sizeof(U));
      ++written;
    }
  const auto* bytes = reinterpret_cast<const unsigned char*>(out.data());
  int64 touched = 0;
  for (std::size_t i = 0; i < size * sizeof(U); ++i) touched += bytes[i] == 0xff ? 0 : 1;
  CHECK(touched == 0);
  CHECK(written == rows * columns);
}

template <class T, class U>
void check_all() {
  for (const int64 columns : {1, 2, 15, 16, 17, 100, 1023, 1024, 1025, 3000}) {
    check<T, U>(26, columns, columns, 1);
    check<T, U>(13, columns, -(columns + 3), 1);
  }
  check<T, U>(13, 1500, 2, 26);      // a transposed view
  check<T, U>(26, 20000, 20000, 1);  // enough elements for threads
}

}  // namespace

TEST_CASE("softmax on the CPU agrees with the reference") {
  check_all<float, float>();
  check_all<fp16, fp16>();
  check_all<bf16, bf16>();
  check_all<double, double>();
  check_all<fp16, float>();
  check_all<float, bf16>();
}

TEST_CASE("rows of 2^24 elements keep the error bound") {
  // 2^24 elements are 16384 pieces of 1024.
  for (const int64 columns : {int64{1024}, int64{1} << 18, (int64{1} << 24) - 5})
    for (const int kind : {0, 1, 2}) {
      CAPTURE(columns, kind);
      const auto row = softmax_long_row(columns, kind);
      std::vector<float> y(row.size());
      REQUIRE(softmax(giwa::host, tensor_view<const float, 1>(row.data(), {columns}),
                      tensor_view<float, 1>(y.data(), {columns}))
                  .ok());
      CHECK(softmax_units(row, y) <= 8);
    }
}

TEST_CASE("1024 equal elements keep the error bound") {
  // Errors of equal additions have one sign: a chain of 64 loses more than 8 units for some values.
  constexpr int64 columns = 1024;
  std::vector<float> y(columns);
  double worst = 0;
  for (int i = 1; i < 500; ++i) {
    std::vector<float> row(columns, -1e-3f * static_cast<float>(i));
    row[0] = 0;
    REQUIRE(softmax(giwa::host, tensor_view<const float, 1>(row.data(), {columns}),
                    tensor_view<float, 1>(y.data(), {columns}))
                .ok());
    worst = std::max(worst, softmax_units(row, y));
  }
  CHECK(worst <= 5);
}

TEST_CASE("softmax in place, and of an input with stride 0") {
  const auto row = softmax_row<float>(2500, 0);
  std::vector<float> x(row), y(5 * row.size());
  const tensor_view<float, 1> v(x.data(), {2500});
  REQUIRE(softmax(giwa::host, v, v).ok());
  const tensor_view<const float, 2> wide(row.data(), {5, 2500}, {0, 1});
  REQUIRE(softmax(giwa::host, wide, tensor_view<float, 2>(y.data(), {5, 2500})).ok());
  for (std::size_t r = 0; r < 5; ++r) CHECK(std::memcmp(x.data(), y.data() + r * 2500, 2500 * sizeof(float)) == 0);
}

TEST_CASE("softmax refuses invalid views and accepts empty ones") {
  std::vector<float> memory(100);
  float* const p = memory.data();
  const tensor_view<float, 2> a(p, {4, 10}), b(p + 50, {4, 10});
  const auto refused = [](const giwa::status& s, const char* argument) {
    INFO(giwa::format_status(s).c_str());
    return s.code == giwa::status_code::invalid_argument && s.argument == std::string(argument);
  };
  CHECK(softmax(giwa::host, a, b).ok());
  CHECK(refused(softmax(giwa::host, tensor_view<float, 2>(nullptr, {4, 10}), b), "in"));
  CHECK(refused(softmax(giwa::host, a, tensor_view<float, 2>(nullptr, {4, 10})), "out"));
  CHECK(refused(softmax(giwa::host, tensor_view<float, 2>(p, {-4, 10}), b), "in"));
  CHECK(refused(softmax(giwa::host, a, tensor_view<float, 2>(p + 50, {4, 9})), "out"));
  CHECK(refused(softmax(giwa::host, a, tensor_view<float, 2>(p + 50, {5, 10})), "out"));
  CHECK(refused(softmax(giwa::host, a, tensor_view<float, 2>(p + 1, {4, 10})), "out"));
  CHECK(refused(softmax(giwa::host, a, tensor_view<float, 2>(p, {4, 10}, {1, 4})), "out"));
  CHECK(refused(softmax(giwa::host, a, tensor_view<float, 2>(p + 50, {4, 10}, {0, 1})), "out"));
  CHECK(softmax(giwa::host, tensor_view<float, 2>(nullptr, {0, 10}), tensor_view<float, 2>(nullptr, {0, 10})).ok());
  CHECK(softmax(giwa::host, tensor_view<float, 2>(nullptr, {4, 0}), tensor_view<float, 2>(nullptr, {4, 0})).ok());
}

TEST_CASE("the tolerance detects small errors") {
  CHECK(softmax_agrees<float, float>(0.125, 0.125));
  CHECK_FALSE(softmax_agrees<float, float>(0.125 * (1 + 2e-6), 0.125));
  CHECK_FALSE(softmax_agrees<float, float>(1e-30 * (1 + 1e-5), 1e-30));
  CHECK_FALSE(softmax_agrees<fp16, fp16>(0.125 + 0x1p-13, 0.125));  // one unit of fp16
  CHECK_FALSE(softmax_agrees<bf16, bf16>(0.125 + 0x1p-10, 0.125));
  CHECK_FALSE(softmax_agrees<double, double>(0.125 * (1 + 1e-14), 0.125));
  CHECK_FALSE(softmax_agrees<float, float>(0, std::nan("")));
  CHECK_FALSE(softmax_agrees<float, float>(std::nan(""), 0));
}
