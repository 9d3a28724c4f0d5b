// SPDX-License-Identifier: MIT
// tensor_view: the address of an element, conversions, what is contiguous, and what check() refuses.
#include <giwa/numeric/tensor_view.hpp>

#include <array>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::bound;
using giwa::int64;
using giwa::max_int64;
using giwa::status;
using giwa::status_code;
using giwa::tensor_view;

namespace {

constexpr int64 min_int64 = -max_int64 - 1;

// What a library's mdspan offers of itself.
template <class T, int Rank>
struct mdspan_of_another_library {
  using rank_type = unsigned;
  static constexpr rank_type rank() { return Rank; }
  T* data_handle() const { return data; }
  int extent(rank_type d) const { return sizes[d]; }
  int stride(rank_type d) const { return steps[d]; }
  T* data;
  int sizes[Rank], steps[Rank];
};

struct base {
  int x;
};
struct derived : base {
  int y;
};

template <class View, class... From>
constexpr bool made_from = std::is_constructible_v<View, From...>;
using floats = tensor_view<float, 1>;
using const_floats = tensor_view<const float, 1>;
using square = tensor_view<float, 2>;

static_assert(std::is_trivially_copyable_v<square>);
static_assert(std::is_convertible_v<floats, const_floats> && !made_from<floats, const_floats&>);
static_assert(!made_from<tensor_view<base, 1>, tensor_view<derived, 1>&>, "the steps from element to element differ");
static_assert(!made_from<tensor_view<base, 1>, std::vector<derived>&>);
static_assert(!made_from<floats, square&> && !made_from<const_floats, square&>, "a rank does not vanish silently");
static_assert(!made_from<square, floats&>);
static_assert(made_from<floats, std::vector<float>&> && made_from<const_floats, const std::vector<float>&>);
static_assert(made_from<const_floats, std::vector<float>&> && !made_from<floats, const std::vector<float>&>);
static_assert(!made_from<const_floats, std::vector<float>>, "the vector would be gone before the view");
static_assert(!made_from<floats, std::vector<double>&> && !made_from<square, std::vector<float>&>);
static_assert(!made_from<tensor_view<bool, 1>, std::vector<bool>&>);
static_assert(!made_from<square, mdspan_of_another_library<float, 3>&>);
static_assert(!made_from<square, mdspan_of_another_library<const float, 2>&>);

// Contiguous by definition: the elements, taken in row-major order, are neighbours in memory.
bool neighbours_in_memory(const giwa::index<3>& sizes, const giwa::index<3>& strides) {
  int64 next = 0;
  for (int64 z = 0; z < sizes[0]; ++z)
    for (int64 y = 0; y < sizes[1]; ++y)
      for (int64 x = 0; x < sizes[2]; ++x)
        if (z * strides[0] + y * strides[1] + x * strides[2] != next++) return false;
  return true;
}

template <class View>
bool refused(const View& view, const char* part_of_message) {
  const status s = view.check("argument");
  CAPTURE(s.message);
  CHECK(s.argument == std::string("argument"));
  CHECK(std::string(s.message).find(part_of_message) != std::string::npos);
  return s.code == status_code::invalid_argument;
}

}  // namespace

TEST_CASE("an index leads to its element") {
  std::vector<int> memory(1000);
  int* const middle = memory.data() + 500;
  SECTION("without strides: row-major") {
    const tensor_view<int, 3> v(memory.data(), {4, 5, 6});
    CHECK(v.strides() == giwa::index{30, 6, 1});
    CHECK(v.size() == 120);
    int* next = memory.data();
    for (int64 z = 0; z < 4; ++z)
      for (int64 y = 0; y < 5; ++y)
        for (int64 x = 0; x < 6; ++x) {
          REQUIRE(&v[{z, y, x}] == next);
          REQUIRE(&v(z, y, x) == next++);
        }
  }
  SECTION("with strides: negative, zero, transposed, overlapping") {
    for (const int64 a : {-60, -1, 0, 1, 7, 60})
      for (const int64 b : {-13, -1, 0, 1, 13}) {
        const tensor_view<int, 2> v(middle, {5, 7}, {a, b});
        for (int64 y = 0; y < 5; ++y)
          for (int64 x = 0; x < 7; ++x) REQUIRE(&v(y, x) == middle + y * a + x * b);
      }
  }
  SECTION("offsets are 64 bits wide") {
    const tensor_view<char, 2> v(nullptr, {3, 3}, {int64{1} << 40, int64{3} << 32});
    CHECK(reinterpret_cast<giwa::uint64>(&v(2, 1)) == (giwa::uint64{2} << 40) + (giwa::uint64{3} << 32));
  }
  SECTION("a view of const elements shows the same, and writing goes through") {
    const tensor_view<int, 2> v(memory.data(), {10, 10}, {20, 2});
    const tensor_view<const int, 2> c = v;
    CHECK(c.strides() == v.strides());
    CHECK(c.extents() == v.extents());
    v(3, 4) = 77;
    CHECK(c(3, 4) == 77);
    CHECK(memory[3 * 20 + 4 * 2] == 77);
  }
}

TEST_CASE("a slice has the elements of its range, whatever the strides") {
  std::vector<int> memory(2000);
  int* const middle = memory.data() + 1000;
  for (const giwa::index<3>& strides : {giwa::index{42, 7, 1}, {1, 5, 40}, {-42, 14, -2}, {0, 3, 0}}) {
    const tensor_view<int, 3> v(middle, {5, 6, 7}, strides);
    for (int d = 0; d < 3; ++d)
      for (int64 begin = 0; begin <= v.extent(d); ++begin)
        for (int64 end = begin; end <= v.extent(d); ++end) {
          const tensor_view<int, 3> part = v.slice(d, begin, end);
          CAPTURE(d, begin, end);
          giwa::index<3> sizes = v.extents(), first{0, 0, 0};
          sizes[d] = end - begin, first[d] = begin;
          REQUIRE(part.extents() == sizes);
          REQUIRE(part.strides() == strides);
          if (begin < end) REQUIRE(&part(0, 0, 0) == &v[first]);
          REQUIRE(part.check("part").ok());
        }
  }
  CHECK(tensor_view<int, 2>().slice(0, 0, 0).data() == nullptr);
  constexpr tensor_view<const int, 1> none = tensor_view<const int, 1>(nullptr, {9}).slice(0, 4, 4);
  static_assert(none.size() == 0);
}

TEST_CASE("transposed exchanges two dimensions") {
  std::vector<int> memory(210);
  const tensor_view<int, 4> v(memory.data(), {2, 3, 5, 7});
  for (int a = 0; a < 4; ++a)
    for (int b = 0; b < 4; ++b) {
      const tensor_view<int, 4> t = v.transposed(a, b);
      for (int64 i = 0; i < v.size(); ++i) {
        giwa::index<4> at{i / 105, i / 35 % 3, i / 7 % 5, i % 7};
        const int* const element = &v[at];
        std::swap(at[a], at[b]);
        REQUIRE(&t[at] == element);
      }
    }
  const tensor_view<int, 2> matrix(memory.data(), {4, 9});
  CHECK(matrix.transposed().extents() == giwa::index{9, 4});
  CHECK(matrix.transposed().strides() == giwa::index{1, 9});
}

TEST_CASE("check_extents names the first size that differs") {
  float x[24] = {};
  const tensor_view<float, 3> v(x, {2, 3, 4});
  CHECK(v.check_extents({2, 3, 4}, "v").ok());
  for (int d = 0; d < 3; ++d) {
    giwa::index<3> expected = v.extents();
    for (int later = d; later < 3; ++later) expected[later] += 10;
    const status s = v.check_extents(expected, "v");
    CHECK(s.argument == std::string("v"));
    CHECK((s.relation == bound::exactly && s.expected == expected[d] && s.got == v.extent(d)));
  }
  CHECK(v.check_extents({2, 3, 5}, "v", "v goes with w").message == std::string("v goes with w"));
}

TEST_CASE("a copy of a view is the same view") {
  float memory[8] = {};
  floats strided(memory, {4}, {2});  // no const: this once chose the constructor for ranges, which has no strides
  floats copy = strided;
  const_floats of_const = strided;
  const_floats copy_of_const = of_const;
  for (const const_floats& view : {const_floats(copy), of_const, copy_of_const}) {
    CHECK(view.data() == memory);
    CHECK(view.extent(0) == 4);
    CHECK(view.stride(0) == 2);
  }
}

TEST_CASE("a view is made from a vector, an array, a span and an mdspan") {
  std::vector<float> vector(7);
  std::array<float, 5> array{};
  std::span<float> span(vector.data() + 1, 3);
  const auto same = [](const const_floats& view, const float* data, int64 size) {
    return view.data() == data && view.size() == size && view.stride(0) == 1;
  };
  CHECK(same(vector, vector.data(), 7));
  CHECK(same(std::as_const(vector), vector.data(), 7));
  CHECK(same(array, array.data(), 5));
  CHECK(same(span, vector.data() + 1, 3));
  const floats writable = vector;
  writable[{6}] = 1.0f;
  CHECK(vector[6] == 1.0f);
  const std::vector<float> none;
  CHECK(const_floats(none).check("none").ok());

  const mdspan_of_another_library<float, 3> mdspan{vector.data(), {2, 3, 4}, {1, 20, -3}};
  const tensor_view<const float, 3> view = mdspan;
  CHECK(view.data() == vector.data());
  CHECK(view.extents() == giwa::index{2, 3, 4});
  CHECK(view.strides() == giwa::index{1, 20, -3});
  const mdspan_of_another_library<float, 1> line{vector.data(), {3}, {2}};
  CHECK(floats(line).stride(0) == 2);
}

TEST_CASE("contiguous means neighbours in memory") {
  const int64 steps[] = {-1, 0, 1, 2, 3, 4, 6, 9};
  for (int64 i = 0; i < 4 * 4 * 4; ++i)
    for (const int64 a : steps)
      for (const int64 b : steps)
        for (const int64 c : steps) {
          const giwa::index sizes{i / 16, i / 4 % 4, i % 4}, strides{a, b, c};
          if (tensor_view<const char, 3>(nullptr, sizes, strides).contiguous() == neighbours_in_memory(sizes, strides))
            continue;
          CAPTURE(sizes[0], sizes[1], sizes[2], a, b, c);
          REQUIRE(false);
        }
  char memory[1];
  CHECK(tensor_view<char, 3>(memory, {1, 1, 1}, {min_int64, max_int64, 0}).contiguous());
  CHECK(tensor_view<char, 2>(memory, {int64{1} << 31, int64{1} << 31}).contiguous());
}

TEST_CASE("check refuses sizes that no array has") {
  float x = 0;
  CHECK(tensor_view<float, 3>().check("v").ok());
  for (int64 a = -1; a < 3; ++a)
    for (int64 b = -1; b < 3; ++b)
      for (float* data : {&x, static_cast<float*>(nullptr)}) {
        CAPTURE(a, b, data);
        const square v(data, {a, b});
        const bool negative = a < 0 || b<0, elements = a * b> 0;
        REQUIRE(v.check("v").ok() == (!negative && (data != nullptr || !elements)));
      }
  const status negative = square(&x, {3, -7}).check("v");
  CHECK(negative.relation == bound::at_least);
  CHECK(negative.expected == 0);
  CHECK(negative.got == -7);
  CHECK(refused(square(&x, {min_int64, 1}), "sizes must not be negative"));
  CHECK(refused(floats(nullptr, {1}), "null"));
  CHECK(refused(floats(nullptr, {1}, {0}), "null"));
  CHECK_FALSE(square(&x, {int64{1} << 32, int64{1} << 31}).check("v").ok());  // default strides that wrapped
  CHECK(refused(square(&x, {int64{1} << 32, int64{1} << 31}, {0, 0}), "the product of the sizes"));
  // A size of zero makes the other sizes meaningless, not wrong.
  CHECK(square(nullptr, {0, max_int64}).check("v").ok());
  for (const giwa::index<3>& sizes :
       {giwa::index{max_int64, max_int64, 0}, {0, int64{1} << 62, 4}, {int64{1} << 62, 0, 4}}) {
    const tensor_view<float, 3> empty(nullptr, sizes);
    CHECK(empty.check("v").ok());
    CHECK(empty.size() == 0);
    CHECK(empty.contiguous());
  }
}

TEST_CASE("check refuses a pointer that is not aligned to its element") {
  alignas(16) char memory[64] = {};
  const auto check = []<class T>(T* p) { return tensor_view<T, 1>(p, {2}).check("v"); };
  for (int offset = 0; offset < 16; ++offset) {
    CAPTURE(offset);
    CHECK(check(memory + offset).ok());
    CHECK(check(reinterpret_cast<short*>(memory + offset)).ok() == (offset % 2 == 0));
    CHECK(check(reinterpret_cast<const float*>(memory + offset)).ok() == (offset % 4 == 0));
    CHECK(check(reinterpret_cast<double*>(memory + offset)).ok() == (offset % 8 == 0));
  }
  const status s = check(reinterpret_cast<double*>(memory + 12));
  CHECK(s.argument == std::string("v"));
  CHECK(s.relation == bound::at_least);
  CHECK(s.expected == 8);
  CHECK(s.got == 4);
  CHECK(tensor_view<double, 1>(reinterpret_cast<double*>(memory + 1), {0}).check("v").ok());  // no element to read
}

TEST_CASE("check refuses strides that no address reaches") {
  alignas(8) char byte = 0;
  // Two elements a stride apart: the last byte has to be at most 2^63 - 1 bytes from the first, both counted.
  for (const int64 stride : giwa_test::edges())
    for (const int64 sign : {1, -1}) {
      CAPTURE(stride, sign);
      const bool reachable = stride <= max_int64 - 1;
      REQUIRE(tensor_view<char, 1>(&byte, {2}, {sign * stride}).check("v").ok() == reachable);
      const bool reachable8 = stride <= (max_int64 - 8) / 8;  // the last byte included
      REQUIRE(tensor_view<double, 1>(reinterpret_cast<double*>(&byte), {2}, {sign * stride}).check("v").ok() ==
              reachable8);
      const bool reachable_in_3 = stride <= (max_int64 - 1) / 3;
      REQUIRE(tensor_view<char, 1>(&byte, {4}, {sign * stride}).check("v").ok() == reachable_in_3);
      REQUIRE(tensor_view<char, 2>(&byte, {1, 4}, {max_int64, sign * stride}).check("v").ok() == reachable_in_3);
      // Each dimension is fine alone; together they reach too far.
      const bool both = stride <= (max_int64 - 1) / 2;
      REQUIRE(tensor_view<char, 2>(&byte, {2, 2}, {stride, -sign * stride}).check("v").ok() == both);
    }
  CHECK(refused(tensor_view<char, 1>(&byte, {2}, {min_int64}), "the offsets in bytes must fit"));
  CHECK(tensor_view<char, 1>(&byte, {1}, {min_int64}).check("v").ok());
  CHECK(tensor_view<char, 1>(&byte, {max_int64}, {0}).check("v").ok());
}
