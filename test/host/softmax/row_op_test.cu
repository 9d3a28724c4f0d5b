// SPDX-License-Identifier: MIT
// The softmax kernel on the host executor, thread by thread: every shape except those of clusters, every access.
#include <giwa/base/throw.hpp>
#include <giwa/host_executor.cuh>
#include <giwa/softmax/row_op.cuh>
#include <giwa/softmax/row_softmax.cuh>

#include <cstring>
#include <memory>

#include "host/softmax/reference.hpp"
#include "support/catch.hpp"
#include "support/environment.hpp"
#include "support/same_bits.hpp"

namespace {

using giwa::bf16;
using giwa::fp16;
using giwa::int64;
using giwa::tensor_view;
using giwa::detail::row_access;
using namespace giwa_test;

// Memory of exactly `size` elements, all bytes 0xff, beginning `offset` elements past a multiple of 16 bytes.
template <class T>
class exact {
 public:
  exact(int64 size, int64 offset)
      : size_(static_cast<std::size_t>(size)), offset_(static_cast<std::size_t>(offset)), memory_(new char[bytes()]) {
    std::memset(memory_.get(), 0xff, bytes());
  }
  T* data() const { return reinterpret_cast<T*>(memory_.get()) + offset_; }
  bool untouched() const {
    for (std::size_t i = 0; i < bytes(); ++i)
      if (static_cast<unsigned char>(memory_.get()[i]) != 0xff) return false;
    return true;
  }

 private:
  std::size_t bytes() const { return (size_ + offset_) * sizeof(T); }
  std::size_t size_, offset_;
  std::unique_ptr<char[]> memory_;
};

template <class T, class U, class Shape, row_access Access>
std::vector<U> run(int64 rows, int64 columns, int64 gap, int64 in_offset, int64 out_offset, bool in_place = false) {
  using op = giwa::detail::row_softmax_op<T, U, Shape, Access>;
  const int64 step = Access == row_access::strided ? rows + gap : 1;
  const int64 stride = Access == row_access::strided ? 1 : columns + gap;
  const int64 size = (rows - 1) * stride + (columns - 1) * step + 1;
  const exact<T> x(size, in_offset);
  const exact<U> y(size, out_offset);
  const tensor_view<T, 2> in(x.data(), {rows, columns}, {stride, step});
  tensor_view<U, 2> out(y.data(), {rows, columns}, {stride, step});
  for (int64 r = 0; r < rows; ++r) {
    const auto row = softmax_row<T>(columns, static_cast<int>(r));
    for (int64 c = 0; c < columns; ++c) in(r, c) = row[static_cast<std::size_t>(c)];
  }
  if constexpr (std::is_same_v<T, U>)
    if (in_place) out = in;

  typename op::params p{};
  p.in = in.data();
  p.out = out.data();
  p.in_stride = p.out_stride = step;
  p.columns = columns;
  p.map = giwa::detail::row_map::of(in, out);
  p.end_row = rows;
  p.launch = giwa::detail::launch_of<Shape>(columns * giwa::detail::weight_of<typename op::compute>);
  REQUIRE(p.launch.threads > 0);
  const int64 each = Shape::owner == giwa::detail::row_owner::lanes ? p.launch.threads / Shape::lanes : 1;
  const giwa::status s =
      giwa::launch(giwa::host, {.grid = giwa::ceil_div(rows, each), .block = p.launch.threads}, op{}, p);
  INFO(giwa::format_status(s).c_str());
  REQUIRE(s.ok());

  CAPTURE(rows, columns, gap, in_offset, out_offset, sizeof(T), sizeof(U), static_cast<int>(Access), p.launch.threads);
  std::vector<U> result;
  int64 wrong = 0;
  for (int64 r = 0; r < rows; ++r) {
    const auto expected = softmax_reference(in_double(softmax_row<T>(columns, static_cast<int>(r))));
    for (int64 c = 0; c < columns; ++c) {
      result.push_back(out(r, c));
      wrong += softmax_agrees<T, U>(giwa::convert<double>{}(out(r, c)), expected[static_cast<std::size_t>(c)]) ? 0 : 1;
      std::memset(static_cast<void*>(&out(r, c)), 0xff, sizeof(U));
    }
  }
  REQUIRE(wrong == 0);
  REQUIRE(y.untouched());
  return result;
}

// All accesses must give the same bits.
template <class T, class U, class Shape>
void check(int64 rows, int64 columns) {
  constexpr int count = giwa::detail::packet_count<T, U>;
  const int64 whole = giwa::round_up(columns, int64{count}) - columns;
  const auto first = run<T, U, Shape, row_access::aligned>(rows, columns, whole, 0, 0);
  REQUIRE(same_bits(first, run<T, U, Shape, row_access::shifted>(rows, columns, whole + 1, 0, 0)));
  if (!small_mode()) REQUIRE(same_bits(first, run<T, U, Shape, row_access::shifted>(rows, columns, 0, 1, count - 1)));
  REQUIRE(same_bits(first, run<T, U, Shape, row_access::shifted>(rows, columns, 3, count / 2, 1)));
  REQUIRE(same_bits(first, run<T, U, Shape, row_access::strided>(rows, columns, 2, 1, 0)));
  if constexpr (std::is_same_v<T, U>) {
    REQUIRE(same_bits(first, run<T, U, Shape, row_access::aligned>(rows, columns, whole, 0, 0, true)));
    if (!small_mode()) REQUIRE(same_bits(first, run<T, U, Shape, row_access::shifted>(rows, columns, 1, 1, 0, true)));
  }
}

// Lengths in places; a double takes two. ThreadSanitizer takes minutes for all of them. Small mode keeps every shape,
// access and type:
// one length for each shape, two where short rows take another path, and one row where a block always has 512 threads.
template <class T, class U>
void check_shapes() {
  using namespace giwa::detail;
  using lengths = std::vector<int64>;
  constexpr int64 weight = weight_of<softmax_compute<T, U>>;
  const bool brief = small_mode();
  for (const int64 places : brief ? lengths{7, 128} : lengths{2, 7, 8, 100, 128})
    check<T, U, row_of_8_lanes>(39, places / weight);
  for (const int64 places : brief ? lengths{129} : lengths{15, 129, 256})
    check<T, U, row_of_16_lanes>(13, places / weight);
  for (const int64 places : brief ? lengths{300} : lengths{255, 300, 512})
    check<T, U, row_of_warp>(13, places / weight);
  for (const int64 places : brief ? lengths{1001} : lengths{513, 1001, 1024})
    check<T, U, long_row_of_warp>(13, places / weight);
  for (const int64 places : brief ? lengths{1100} : lengths{1025, 2000, 4099})
    check<T, U, row_of_block>(3, places / weight);
  for (const int64 places : {8193}) check<T, U, long_row_of_block>(2, places / weight);
  for (const int64 places : brief ? lengths{100, 8193} : lengths{100, 8191, 17000})
    check<T, U, any_row_of_block>(brief ? 1 : 2, places / weight);
}

}  // namespace

TEST_CASE("the softmax kernel on the host, fp32") { check_shapes<float, float>(); }
TEST_CASE("the softmax kernel on the host, fp16") { check_shapes<fp16, fp16>(); }
TEST_CASE("the softmax kernel on the host, bf16 to fp32") { check_shapes<bf16, float>(); }
TEST_CASE("the softmax kernel on the host, fp32 to fp16") { check_shapes<float, fp16>(); }
TEST_CASE("the softmax kernel on the host, fp16 to fp64") { check_shapes<fp16, double>(); }

TEST_CASE("the softmax kernel on the host: a row of 2^21 elements keeps the error bound") {
  if (small_mode()) return;
  using op = giwa::detail::row_softmax_op<float, float, giwa::detail::any_row_of_block, row_access::aligned>;
  constexpr int64 columns = int64{1} << 21;  // 256 tiles: two levels of groups
  for (const int kind : {0, 1}) {
    CAPTURE(kind);
    const auto row = softmax_long_row(columns, kind);
    std::vector<float> y(row.size());
    const tensor_view<const float, 1> in(row.data(), {columns});
    const tensor_view<float, 1> out(y.data(), {columns});
    op::params p{};
    p.in = in.data();
    p.out = out.data();
    p.in_stride = p.out_stride = 1;
    p.columns = columns;
    p.map = giwa::detail::row_map::of(in, out);
    p.end_row = 1;
    p.launch = giwa::detail::launch_of<giwa::detail::any_row_of_block>(columns);
    REQUIRE(giwa::launch(giwa::host, {.grid = 1, .block = p.launch.threads}, op{}, p).ok());
    CHECK(softmax_units(row, y) <= 8);
  }
}

TEST_CASE("every length has a shape that holds it") {
  using namespace giwa::detail;
  int64 wrong = 0;
  for (const bool clusters : {false, true})
    for (int64 columns = 1; columns < 300'000; columns += columns < 3000 ? 1 : 97) {
      with_row_shape(columns, clusters, [&](auto shape, const row_launch& l) {
        using type = decltype(shape);
        const int64 owners = type::owner == row_owner::lanes ? type::lanes : int64{l.threads} * l.blocks;
        const bool holds = !type::resident || owners * type::elements >= columns;
        wrong += holds && l.threads % 32 == 0 && l.threads >= 32 && l.threads <= type::max_threads && 1 <= l.blocks &&
                         l.blocks <= type::max_blocks && (clusters || l.blocks == 1)
                     ? 0
                     : 1;
        return 0;
      });
    }
  CHECK(wrong == 0);
}

TEST_CASE("packets are aligned where the first element and all strides of rows are") {
  const exact<float> buffer(64, 0);
  float* const memory = buffer.data();
  const auto access = [&](int first, giwa::index<2> sizes, giwa::index<2> strides, int first_out = 0) {
    return giwa::detail::access_of(tensor_view<const float, 2>(memory + first, sizes, strides),
                                   tensor_view<float, 2>(memory + first_out, sizes, {8, 1}));
  };
  CHECK(access(0, {3, 8}, {8, 1}) == row_access::aligned);
  CHECK(access(1, {3, 8}, {8, 1}) == row_access::shifted);
  CHECK(access(0, {3, 8}, {8, 1}, 2) == row_access::shifted);
  CHECK(access(0, {3, 8}, {9, 1}) == row_access::shifted);
  CHECK(access(0, {1, 8}, {9, 1}) == row_access::aligned);  // one row has no next one
  CHECK(access(0, {3, 8}, {16, 2}) == row_access::strided);
  CHECK(access(0, {3, 1}, {4, 2}) == row_access::aligned);
  const tensor_view<const float, 3> outer(memory, {2, 2, 4}, {9, 4, 1}), inner(memory, {2, 2, 4}, {8, 5, 1});
  const tensor_view<float, 3> out(memory, {2, 2, 4});
  CHECK(giwa::detail::access_of(outer, out) == row_access::shifted);
  CHECK(giwa::detail::access_of(inner, out) == row_access::shifted);
}
