// SPDX-License-Identifier: MIT
// The larger of two floats, sums of products, and accesses of 1 to 16 bytes, on the host.
#include <giwa/numeric/constants.hpp>
#include <giwa/numeric/maximum.hpp>
#include <giwa/numeric/multiply_add.hpp>
#include <giwa/numeric/vector_access.hpp>

#include <cmath>
#include <cstring>

#include "support/catch.hpp"

namespace detail = giwa::detail;

TEST_CASE("the larger of two floats is that of fmaxf, the larger of two doubles is one of them") {
  const float values[] = {-detail::infinity_of<float>, -1.5f, -0.0f, 2.0f, 1e-45f, detail::infinity_of<float>,
                          detail::nan_of<float>};
  for (const float a : values)
    for (const float b : values) {
      CAPTURE(a, b);
      const float expected = std::fmax(a, b), got = detail::larger_of(a, b);
      CHECK((got == expected || (std::isnan(got) && std::isnan(expected))));
      const double wide = detail::larger_of(double{a}, double{b});
      if (std::isnan(a) || std::isnan(b))
        CHECK((std::isnan(wide) || wide == a || wide == b));
      else
        CHECK(wide == expected);
    }
  CHECK(detail::larger_of(3u, 0x80000000u) == 0x80000000u);
}

TEST_CASE("a fused product and sum is rounded once") {
  const float x = 1 + 0x1p-12f;  // x * x needs 25 bits: 1 + 2^-11 + 2^-24
  CHECK(detail::fused_multiply_add(x, x, -(1 + 0x1p-11f)) == 0x1p-24f);
  CHECK(detail::fma_with_subnormals(x, x, -(1 + 0x1p-11f)) == 0x1p-24f);
  CHECK(detail::fma_with_subnormals(0x1p-100f, 0x1p-40f, 0x1p-149f) == 0x1p-140f + 0x1p-149f);
  CHECK(detail::multiply_add(3, 5, 7) == 22);
}

namespace {

template <int Bytes>
bool round_trip() {
  struct value {
    unsigned char byte[Bytes];
  };
  alignas(16) unsigned char memory[16 + Bytes + 16];
  for (std::size_t i = 0; i < sizeof memory; ++i) memory[i] = static_cast<unsigned char>(i * 7 + 1);
  const auto v = detail::load_vector<value>(memory + 16);
  bool right = std::memcmp(&v, memory + 16, Bytes) == 0;
  alignas(16) unsigned char to[16 + Bytes + 16] = {}, expected[sizeof to] = {};
  std::memcpy(expected + 16, memory + 16, Bytes);
  detail::store_vector(to + 16, v);
  right = right && std::memcmp(to, expected, sizeof to) == 0;
  std::memset(to, 0, sizeof to);
  detail::store_vector_streaming(to + 16, v);
  return right && std::memcmp(to, expected, sizeof to) == 0;
}

}  // namespace

TEST_CASE("a vector access reads and writes its bytes and no others") {
  CHECK(round_trip<1>());
  CHECK(round_trip<2>());
  CHECK(round_trip<4>());
  CHECK(round_trip<8>());
  CHECK(round_trip<16>());
}
