// SPDX-License-Identifier: MIT
// elementwise{c, a, b}: which arrays are refused, and what for_all makes of them on the CPU.
#include <giwa/grid/elementwise.hpp>
#include <giwa/host.hpp>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "support/catch.hpp"

using giwa::bound;
using giwa::elementwise;
using giwa::for_all;
using giwa::int64;
using giwa::status;
using giwa::status_code;
using giwa::tensor_view;

namespace {

static_assert(
    std::is_same_v<decltype(elementwise{std::declval<std::vector<double>&>(), std::declval<std::span<const char>>(),
                                        std::declval<const std::array<int, 3>&>()}),
                   elementwise<double, char, int>>);

bool is(const status& s, const char* argument, const char* part_of_message) {
  CAPTURE(s.argument, s.message);
  CHECK(s.argument == std::string(argument));
  CHECK(std::string(s.message).find(part_of_message) != std::string::npos);
  return s.code == status_code::invalid_argument;
}

/// An array that says whose memory it is, as a device_array does.
struct on_gpu_1 {
  float* memory;
  float* data() const { return memory; }
  int64 size() const { return 4; }
  int device() const { return 1; }
};

struct sum {
  template <class... T>
  auto operator()(T... x) const {
    return (100 + ... + x);
  }
};

}  // namespace

TEST_CASE("arrays of one size are taken, others refused with both numbers") {
  for (const std::size_t out : {0u, 1u, 7u})
    for (const std::size_t in : {0u, 1u, 7u}) {
      std::vector<int> c(out), a(in), b(out);
      for (const status& s : {elementwise{c, a}.state(), elementwise{c, b, a}.state(), elementwise{c, a, b}.state()}) {
        REQUIRE(s.ok() == (in == out));
        if (s.ok()) continue;
        CHECK(is(s, "in", "as many elements"));
        CHECK(s.relation == bound::exactly);
        CHECK(s.expected == static_cast<int64>(out));
        CHECK(s.got == static_cast<int64>(in));
      }
    }
}

TEST_CASE("an input may be the output, and may not overlap it otherwise") {
  // Against a count of the bytes that both use.
  std::array<unsigned char, 64> memory{};
  const auto check = [&](auto out_type, auto in_type) {
    using out = decltype(out_type);
    using in = decltype(in_type);
    for (std::size_t n = 0; n < 5; ++n)
      for (std::size_t at_out = 0; at_out + n * sizeof(out) <= memory.size(); at_out += sizeof(out))
        for (std::size_t at_in = 0; at_in + n * sizeof(in) <= memory.size(); at_in += sizeof(in)) {
          std::array<int, 64> uses{};
          for (std::size_t byte = 0; byte < n * sizeof(out); ++byte) uses[at_out + byte] |= 1;
          for (std::size_t byte = 0; byte < n * sizeof(in); ++byte) uses[at_in + byte] |= 2;
          bool overlap = false;
          for (const int use : uses) overlap = overlap || use == 3;
          const bool same = at_out == at_in && sizeof(out) == sizeof(in);
          const tensor_view<out, 1> c(reinterpret_cast<out*>(&memory[at_out]), {n});
          const tensor_view<const in, 1> a(reinterpret_cast<const in*>(&memory[at_in]), {n});
          const status s = elementwise{c, a}.state();
          CAPTURE(sizeof(out), sizeof(in), n, at_out, at_in);
          REQUIRE(s.ok() == (!overlap || same));
          if (!s.ok()) REQUIRE(is(s, "in", "not overlap"));
        }
  };
  check(int{}, int{});
  check(short{}, int{});
  check(int{}, short{});
  check(char{}, char{});
  // Inputs may overlap one another.
  std::vector<int> c(4), a(5);
  CHECK(elementwise{c, std::span(a).first(4), std::span(a).last(4), std::span(a).first(4)}.state().ok());
}

TEST_CASE("views that are not contiguous or break a rule are refused by name") {
  std::vector<float> x(100), y(100);
  const tensor_view<float, 2> whole(x.data(), {4, 5}), strided(x.data(), {4, 5}, {6, 1}),
      transposed(x.data(), {4, 5}, {1, 4});
  const tensor_view<float, 2> other(y.data(), {4, 5});
  CHECK(elementwise{whole, other}.state().ok());
  CHECK(is(elementwise{strided, other}.state(), "out", "must be contiguous"));
  CHECK(is(elementwise{transposed, other}.state(), "out", "must be contiguous"));
  CHECK(is(elementwise{other, strided}.state(), "in", "must be contiguous"));
  CHECK(is(elementwise{other, whole, transposed}.state(), "in", "must be contiguous"));
  CHECK(elementwise{whole, tensor_view<float, 1>(y.data(), {20})}.state().ok());  // only the number of elements counts

  const tensor_view<float, 1> null(nullptr, {20}), negative(x.data(), {-20});
  CHECK(is(elementwise{null, other}.state(), "out", "null"));
  CHECK(is(elementwise{whole, null}.state(), "in", "null"));
  CHECK(is(elementwise{negative, other}.state(), "out", "negative"));
  CHECK(is(elementwise{whole, negative}.state(), "in", "negative"));
  CHECK(is(elementwise{std::span<float>(static_cast<float*>(nullptr), 3)}.state(), "out", "null"));
  CHECK(elementwise{std::span<float>(), std::span<const float>()}.state().ok());
  // Sizes that no memory has, and whose bytes no 64-bit number holds.
  CHECK(is(elementwise{std::span<float>(x.data(), ~std::size_t{0})}.state(), "out", "negative"));
  const std::span<float> huge(x.data(), std::size_t{1} << 62), behind(x.data() + 1, std::size_t{1} << 62);
  CHECK(is(elementwise{huge, behind}.state(), "out", "64 bits"));
  CHECK(is(elementwise{tensor_view<char, 1>(nullptr, {0}), huge}.state(), "in", "64 bits"));
  CHECK(for_all(giwa::host, elementwise{null, other}, sum{}).argument == std::string("out"));
}

TEST_CASE("the CPU refuses an array that says it is on a GPU, by name") {
  std::vector<float> memory(8), c(4);
  const on_gpu_1 there{memory.data()}, other{memory.data() + 4};
  CHECK(is(for_all(giwa::host, elementwise{there, c}, sum{}), "out", "in GPU memory"));
  CHECK(is(for_all(giwa::host, elementwise{c, there}, sum{}), "in", "in GPU memory"));
  CHECK(is(for_all(giwa::host, elementwise{c, c, there}, sum{}), "in", "in GPU memory"));
  CHECK(elementwise{there, other}.known_device() == 1);
  CHECK(elementwise{there, c}.known_device() == -1);
  CHECK(memory == std::vector<float>(8));
  CHECK(c == std::vector<float>(4));
}

TEST_CASE("fill sets every element, on the CPU") {
  std::vector<double> x(1001, 7);
  CHECK(giwa::fill(giwa::host, x, 0).ok());
  CHECK(x == std::vector<double>(1001, 0));
  const tensor_view<double, 2> middle(x.data() + 1, {9, 111});
  CHECK(giwa::fill(giwa::host, middle, -1.5).ok());
  for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(x[i] == (i == 0 || i == 1000 ? 0 : -1.5));
  std::array<std::array<char, 3>, 5> structures{};
  CHECK(giwa::fill(giwa::host, structures, {'a', 'b', 'c'}).ok());
  CHECK((structures[0] == std::array{'a', 'b', 'c'} && structures[4] == structures[0]));
  std::vector<float> none;
  CHECK(giwa::fill(giwa::host, none, 1).ok());
  CHECK(giwa::fill(giwa::host, tensor_view<float, 1>(nullptr, {0}), 1).ok());
  CHECK(is(giwa::fill(giwa::host, tensor_view<float, 1>(nullptr, {3}), 1), "out", "null"));
  CHECK(is(giwa::fill(giwa::host, middle.transposed(), 1), "out", "contiguous"));
  float of_gpu[4];
  CHECK(is(giwa::fill(giwa::host, on_gpu_1{of_gpu}, 1), "out", "GPU memory"));
}

TEST_CASE("for_all computes every element from its inputs, on the CPU") {
  for (const std::size_t n : {0u, 1u, 2u, 1000u, 300007u}) {
    std::vector<double> c(n, -1);
    std::vector<short> a(n);
    std::vector<float> b(n);
    for (std::size_t i = 0; i < n; ++i) a[i] = static_cast<short>(i % 1000), b[i] = static_cast<float>(i % 77) / 4;
    const auto all = [&](const status& s, auto f) {
      bool right = s.ok();
      for (std::size_t i = 0; i < n; ++i) right = right && c[i] == f(i);
      return right;
    };
    CAPTURE(n);
    CHECK(all(for_all(giwa::host, elementwise{c}, sum{}), [](std::size_t) { return 100.0; }));
    CHECK(all(for_all(giwa::host, elementwise{c, a}, sum{}), [&](std::size_t i) { return 100.0 + a[i]; }));
    CHECK(all(for_all(giwa::host, elementwise{c, a, b}, sum{}), [&](std::size_t i) { return 100.0 + a[i] + b[i]; }));
    CHECK(
        all(for_all(giwa::host, elementwise{c, c, a}, sum{}), [&](std::size_t i) { return 200.0 + 2 * a[i] + b[i]; }));
  }
}
