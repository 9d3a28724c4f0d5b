// SPDX-License-Identifier: MIT
// softmax on a GPU against the double reference: every length at which the shape changes, every layout, every precision.
#include <giwa/device.hpp>
#include <giwa/softmax.cuh>

#include <cstring>
#include <map>
#include <string>

#include "host/softmax/reference.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/same_bits.hpp"

using giwa::bf16;
using giwa::fp16;
using giwa::int64;
using giwa::softmax;
using giwa::status;
using giwa::tensor_view;
using namespace giwa_test;

namespace {

// The layout of a matrix in memory: strides and offset in elements.
struct layout {
  int64 row_stride, column_stride, offset;
  int64 first(int64 rows, int64 columns) const {  // of the element (0, 0)
    return offset + (row_stride < 0 ? (1 - rows) * row_stride : 0) +
           (column_stride < 0 ? (1 - columns) * column_stride : 0);
  }
  std::size_t size(int64 rows, int64 columns) const {
    return static_cast<std::size_t>(offset + (rows - 1) * std::abs(row_stride) +
                                    (columns - 1) * std::abs(column_stride) + 1 + 19);
  }
};

// A matrix on the GPU and its image on the host. All bytes around it are 0xff, and no kernel may change them.
template <class T>
class matrix {
 public:
  matrix(int64 rows, int64 columns, const layout& l)
      : rows_(rows), columns_(columns), layout_(l), image_(l.size(rows, columns)), memory_(image_.size()) {
    std::memset(static_cast<void*>(image_.data()), 0xff, image_.size() * sizeof(T));
  }
  T& at(int64 row, int64 column) {
    return image_[static_cast<std::size_t>(layout_.first(rows_, columns_) + row * layout_.row_stride +
                                           column * layout_.column_stride)];
  }
  void set_row(int64 row, const std::vector<T>& values) {
    for (int64 c = 0; c < columns_; ++c) at(row, c) = values[static_cast<std::size_t>(c)];
  }
  void upload() {
    check_cuda(cudaMemcpy(memory_.data(), image_.data(), image_.size() * sizeof(T), cudaMemcpyHostToDevice));
    check_cuda(cudaDeviceSynchronize());
  }
  void download() { image_ = memory_.to_host(); }
  tensor_view<T, 2> view() const {
    return {memory_.data() + layout_.first(rows_, columns_),
            {rows_, columns_},
            {layout_.row_stride, layout_.column_stride}};
  }
  const std::vector<T>& image() const { return image_; }

 private:
  int64 rows_, columns_;
  layout layout_;
  std::vector<T> image_;
  gpu_array<T> memory_;
};

template <class T>
const std::vector<double>& reference_row(int64 columns, int which) {
  static std::map<std::pair<int64, int>, std::vector<double>> known;
  auto& row = known[{columns, which % 13}];
  if (row.empty()) row = softmax_reference(in_double(softmax_row<T>(columns, which % 13)));
  return row;
}

// One call; row r is of kind first_kind + r. Every byte is checked.
template <class T, class U>
void check(int64 rows, int64 columns, const layout& in_layout, const layout& out_layout, int first_kind = 0) {
  CAPTURE(rows, columns, in_layout.row_stride, in_layout.column_stride, in_layout.offset, out_layout.row_stride,
          out_layout.column_stride, out_layout.offset, sizeof(T), sizeof(U));
  const giwa::stream s = new_stream();
  matrix<T> in(rows, columns, in_layout);
  matrix<U> out(rows, columns, out_layout);
  for (int64 r = 0; r < rows; ++r) in.set_row(r, softmax_row<T>(columns, (first_kind + static_cast<int>(r)) % 13));
  const std::vector<T> before = in.image();
  in.upload();
  out.upload();
  const status state = softmax(s, tensor_view<const T, 2>(in.view()), out.view());
  INFO(giwa::format_status(state).c_str());
  REQUIRE(state.ok());
  REQUIRE(giwa::synchronize(s).ok());
  in.download();
  out.download();
  REQUIRE(same_bits(before, in.image()));
  int64 wrong = 0, first_wrong = -1;
  for (int64 r = 0; r < rows; ++r) {
    const auto& expected = reference_row<T>(columns, (first_kind + static_cast<int>(r)) % 13);
    for (int64 c = 0; c < columns; ++c) {
      if (!softmax_agrees<T, U>(giwa::convert<double>{}(out.at(r, c)), expected[static_cast<std::size_t>(c)])) {
        if (wrong++ == 0) first_wrong = r * columns + c;
      }
      std::memset(static_cast<void*>(&out.at(r, c)), 0xff, sizeof(U));
    }
  }
  CAPTURE(first_wrong);
  REQUIRE(wrong == 0);
  int64 touched = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(out.image().data());
  for (std::size_t i = 0; i < out.image().size() * sizeof(U); ++i) touched += bytes[i] == 0xff ? 0 : 1;
  REQUIRE(touched == 0);
}

// Lengths around every change of shape, and some between.
std::vector<int64> lengths() {
  std::vector<int64> all{1, 2, 3, 7, 8, 9, 33, 64, 100, 1000, 1500, 2048, 2056, 4096, 5003, 12345, 16383, 33000, 50257};
  for (const int64 limit : {128, 256, 512, 1024, 8192, 16384, 32768, 65536, 131072})
    for (const int64 d : {-1, 0, 1}) all.push_back(limit + d);
  if (!small_mode()) all.insert(all.end(), {100'000, 140'000, 262'144 + 5, 1'000'003});
  return all;
}

template <class T, class U>
void check_lengths() {
  for (const int64 columns : lengths()) {
    const int64 rows = columns <= 1024 ? 39 : columns <= 20000 ? 13 : columns < 200'000 ? 4 : 2;
    const int64 aligned = giwa::round_up(columns, int64{8});
    const int kind = static_cast<int>(columns % 13);
    check<T, U>(rows, columns, {aligned, 1, 0}, {aligned, 1, 0}, kind);
    check<T, U>(rows, columns, {columns, 1, 0}, {columns, 1, 0}, kind + 3);
    check<T, U>(rows, columns, {columns + 3, 1, 1}, {columns + 1, 1, 5}, kind + 6);
    if (columns < 70'000) check<T, U>(rows, columns, {1, rows, 0}, {columns, 1, 2}, kind + 9);
  }
}

}  // namespace

TEST_CASE("fp32, every length") { check_lengths<float, float>(); }
TEST_CASE("fp16, every length") { check_lengths<fp16, fp16>(); }
TEST_CASE("bf16, every length") { check_lengths<bf16, bf16>(); }
TEST_CASE("fp64, every length") { check_lengths<double, double>(); }
TEST_CASE("fp16 to fp32, every length") { check_lengths<fp16, float>(); }
TEST_CASE("fp32 to bf16, every length") { check_lengths<float, bf16>(); }
TEST_CASE("fp16 to fp64, every length") { check_lengths<fp16, double>(); }

TEST_CASE("every pair of misalignments") {
  for (int64 a = 0; a < 8; ++a)
    for (int64 b = 0; b < 8; ++b)
      for (const int64 columns : {5, 120, 250, 500, 1000, 3000}) {
        check<fp16, fp16>(13, columns, {columns + 8, 1, a}, {columns + 16, 1, b});
        if (a < 4 && b < 4) check<float, float>(13, columns, {columns + 8, 1, a}, {columns + 16, 1, b});
        if (a < 4 && b < 4) check<fp16, float>(13, columns, {columns + 8, 1, a}, {columns + 16, 1, b});
      }
}

TEST_CASE("strides of input and output: negative, with gaps, transposed") {
  for (const int64 columns : {1, 37, 300, 1000, 5000, 40'000}) {
    CAPTURE(columns);
    check<float, float>(5, columns, {-(columns + 4), 1, 0}, {columns, 1, 0});
    check<float, float>(5, columns, {columns, -1, 0}, {columns, 1, 0});
    check<fp16, fp16>(5, columns, {2 * columns + 1, 2, 3}, {columns, 1, 0});
    check<fp16, fp16>(5, columns, {columns, 1, 0}, {-3 * columns, -3, 1});
    check<bf16, bf16>(5, columns, {1, 5, 0}, {1, 5, 0});
  }
}

TEST_CASE("three and four dimensions") {
  const giwa::stream s = new_stream();
  constexpr int64 n[4] = {3, 5, 4, 600};
  std::vector<fp16> memory(20 * 3 * 5 * 4 * 600);
  const giwa::index<4> sizes{n[0], n[1], n[2], n[3]};
  for (const giwa::index<4>& strides : {giwa::index<4>{12000, 2400, 600, 1}, giwa::index<4>{12000, 600, 3000, 1},
                                        giwa::index<4>{640, 1920, 9600, 1}, giwa::index<4>{24041, 4807, 1201, 2}}) {
    const gpu_array<fp16> in(memory.size()), out(memory.size());
    const tensor_view<fp16, 4> x(memory.data(), sizes, strides);
    std::vector<std::vector<fp16>> rows;
    for (int64 i = 0; i < n[0]; ++i)
      for (int64 j = 0; j < n[1]; ++j)
        for (int64 k = 0; k < n[2]; ++k) {
          rows.push_back(softmax_row<fp16>(n[3], static_cast<int>(rows.size())));
          for (int64 c = 0; c < n[3]; ++c) x(i, j, k, c) = rows.back()[static_cast<std::size_t>(c)];
        }
    check_cuda(cudaMemcpy(in.data(), memory.data(), in.bytes(), cudaMemcpyHostToDevice));
    check_cuda(cudaDeviceSynchronize());
    REQUIRE(softmax(s, tensor_view<fp16, 4>(in.data(), sizes, strides), tensor_view<fp16, 4>(out.data(), sizes)).ok());
    REQUIRE(giwa::synchronize(s).ok());
    const auto got = out.to_host();
    int wrong = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto expected = softmax_reference(in_double(rows[r]));
      for (std::size_t c = 0; c < expected.size(); ++c)
        wrong += softmax_agrees<fp16, fp16>(giwa::convert<double>{}(got[r * expected.size() + c]), expected[c]) ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

// The bits of a row do not depend on its place, its layout or the other rows.
template <class T, class U>
void check_bits(int64 columns) {
  CAPTURE(columns, sizeof(T), sizeof(U));
  const giwa::stream s = new_stream();
  const auto row = softmax_row<T>(columns, 0);
  std::vector<U> first;
  const auto compare = [&](int64 rows, int64 position, const layout& in_layout, const layout& out_layout) {
    matrix<T> in(rows, columns, in_layout);
    matrix<U> out(rows, columns, out_layout);
    for (int64 r = 0; r < rows; ++r)
      in.set_row(r, r == position ? row : softmax_row<T>(columns, static_cast<int>(r) % 5));
    in.upload();
    REQUIRE(softmax(s, in.view(), out.view()).ok());
    REQUIRE(giwa::synchronize(s).ok());
    out.download();
    std::vector<U> got(row.size());
    for (int64 c = 0; c < columns; ++c) got[static_cast<std::size_t>(c)] = out.at(position, c);
    if (first.empty()) first = got;
    CAPTURE(rows, position, in_layout.row_stride, in_layout.column_stride, in_layout.offset);
    CHECK(same_bits(first, got));
  };
  const int64 many = columns > 20'000 ? 7 : 300;
  const int64 aligned = giwa::round_up(columns, int64{8});
  compare(1, 0, {aligned, 1, 0}, {aligned, 1, 0});
  compare(many, 0, {aligned, 1, 0}, {aligned, 1, 0});
  compare(many, many - 2, {aligned, 1, 0}, {aligned, 1, 0});
  compare(many, 3, {columns + 1, 1, 1}, {columns + 3, 1, 2});
  compare(many, many - 3, {columns | 1, 1, 0}, {columns | 1, 1, 0});
  compare(7, 3, {-aligned - 5, 1, 0}, {aligned, 1, 0});
  compare(7, 3, {1, 7, 0}, {aligned, 1, 0});
  compare(7, 2, {columns, -1, 0}, {columns * 2, 2, 1});
}

TEST_CASE("the bits of a row depend only on the row") {
  for (const int64 columns : {5, 100, 128, 200, 256, 400, 999, 1024, 1100, 8192, 9000, 50257, 131072, 150'001}) {
    check_bits<float, float>(columns);
    check_bits<fp16, fp16>(columns);
    check_bits<bf16, float>(columns);
  }
}

TEST_CASE("in place gives the same bits") {
  const giwa::stream s = new_stream();
  const auto run = [&](auto type, int64 columns, const layout& l) {
    using value = decltype(type);
    CAPTURE(columns, l.row_stride, l.column_stride, l.offset);
    const int64 rows = columns > 20'000 ? 3 : 50;
    matrix<value> in(rows, columns, l), out(rows, columns, l);
    for (int64 r = 0; r < rows; ++r) in.set_row(r, softmax_row<value>(columns, static_cast<int>(r)));
    in.upload();
    REQUIRE(softmax(s, in.view(), out.view()).ok());
    REQUIRE(softmax(s, in.view(), in.view()).ok());
    REQUIRE(giwa::synchronize(s).ok());
    in.download();
    out.download();
    CHECK(same_bits(in.image(), out.image()));
  };
  for (const int64 columns : {1, 100, 256, 500, 1000, 1001, 5000, 8192, 16385, 50257, 131073, 200'003}) {
    run(float{}, columns, {columns, 1, 0});
    run(fp16{}, columns, {columns, 1, 0});
    run(bf16{}, columns, {columns + 3, 1, 1});
    if (columns < 20'000) run(float{}, columns, {1, columns > 20'000 ? 3 : 50, 0});
  }
}

TEST_CASE("softmax captured in a graph, and of empty views") {
  const giwa::stream s = new_stream();
  for (const int64 columns : {300, 5000, 50257, 200'000}) {
    matrix<float> in(6, columns, {columns, 1, 0}), out(6, columns, {columns, 1, 0}), again(6, columns, {columns, 1, 0});
    for (int64 r = 0; r < 6; ++r) in.set_row(r, softmax_row<float>(columns, static_cast<int>(r)));
    in.upload();
    REQUIRE(capture_and_replay(s, 3, [&] { return softmax(s, in.view(), out.view()); }).ok());
    REQUIRE(softmax(s, in.view(), again.view()).ok());
    REQUIRE(giwa::synchronize(s).ok());
    out.download();
    again.download();
    CHECK(same_bits(out.image(), again.image()));
  }
  CHECK(softmax(s, tensor_view<float, 2>(nullptr, {0, 7}), tensor_view<float, 2>(nullptr, {0, 7})).ok());
  CHECK(softmax(s, tensor_view<float, 2>(nullptr, {7, 0}), tensor_view<float, 2>(nullptr, {7, 0})).ok());
}

TEST_CASE("invalid views and host memory are refused with the argument named") {
  const giwa::stream s = new_stream();
  const gpu_array<float> memory(100, 0);
  float* const p = memory.data();
  const tensor_view<float, 2> a(p, {4, 10}), b(p + 50, {4, 10});
  const auto refused = [&](const status& state, const char* argument) {
    INFO(giwa::format_status(state).c_str());
    const bool next_works = softmax(s, a, b).ok();
    return state.code == giwa::status_code::invalid_argument && state.argument == std::string(argument) && next_works &&
           no_error_left();
  };
  CHECK(refused(softmax(s, tensor_view<float, 2>(nullptr, {4, 10}), b), "in"));
  CHECK(refused(softmax(s, a, tensor_view<float, 2>(nullptr, {4, 10})), "out"));
  CHECK(refused(softmax(s, tensor_view<float, 2>(p, {4, -10}), b), "in"));
  CHECK(refused(softmax(s, a, tensor_view<float, 2>(p + 50, {4, 9})), "out"));
  CHECK(refused(softmax(s, a, tensor_view<float, 2>(p + 1, {4, 10})), "out"));
  CHECK(refused(softmax(s, a, tensor_view<float, 2>(p + 50, {4, 10}, {0, 1})), "out"));
  if (device_attribute(cudaDevAttrPageableMemoryAccess) == 0) {
    std::vector<float> on_host(40);
    const tensor_view<float, 2> h(on_host.data(), {4, 10});
    CHECK(refused(softmax(s, h, b), "in"));
    CHECK(refused(softmax(s, a, h), "out"));
  }
}

TEST_CASE("long rows keep the error bound") {
  const giwa::stream s = new_stream();
  const auto worst = [&](int64 columns, int kind) {
    const auto row = softmax_long_row(columns, kind);
    const gpu_array<float> x(row);
    const tensor_view<float, 1> v(x.data(), {columns});
    const status state = softmax(s, v, v);
    INFO(giwa::format_status(state).c_str());
    REQUIRE(state.ok());
    REQUIRE(giwa::synchronize(s).ok());
    return softmax_units(row, x.to_host());
  };
  for (const int kind : {0, 1, 2}) {
    CAPTURE(kind);
    CHECK(worst(int64{1} << 18, kind) <= 8);
    if (!small_mode()) CHECK(worst((int64{1} << 24) - 5, kind) <= 8);
  }
  std::size_t free_bytes = 0, all_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &all_bytes));
  if (small_mode() || free_bytes < (std::size_t{1} << 30)) return;
  for (const int kind : {0, 1}) {
    CAPTURE(kind);
    CHECK(worst(int64{1} << 27, kind) <= 8);
  }
}

TEST_CASE("more than 2^31 elements") {
  if (small_mode()) return;
  const giwa::stream s = new_stream();
  const auto expect = [&](int64 rows, int64 columns) {
    CAPTURE(rows, columns);
    const gpu_array<fp16> x(static_cast<std::size_t>(rows * columns), 0);  // equal elements: each weight is 1 / columns
    const tensor_view<fp16, 2> v(x.data(), {rows, columns});
    REQUIRE(softmax(s, v, v).ok());
    REQUIRE(giwa::synchronize(s).ok());
    const fp16 weight = giwa::convert<fp16>{}(1.0 / static_cast<double>(columns));
    int64 wrong = 0;
    for (const fp16 value : x.to_host()) wrong += std::memcmp(&value, &weight, sizeof weight) == 0 ? 0 : 1;
    CHECK(wrong == 0);
  };
  expect((int64{1} << 21) + 3, 1026);
  expect(3, int64{1} << 30);
}
