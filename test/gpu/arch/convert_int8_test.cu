// SPDX-License-Identifier: MIT
// 8-bit integers on the device: all values become the fp16 numbers of the host, in both orders of bytes, and numbers round as on
// the host.
#include <giwa/arch/convert_int8.cuh>
#include <giwa/grid.cuh>

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/random.hpp"

using giwa::int64;
using giwa::int8_code;
using giwa::uint32;
using giwa_test::gpu_array;

namespace {

struct widened {
  float in_order, alternate;
};
// Element i is integer i % 256 in byte i / 256; its neighbours in the register are others.
struct widen_each {
  widened* out;
  GIWA_DEVICE void operator()(int64 i) const {
    const int byte = static_cast<int>(i >> 8) & 3;
    const uint32 others = static_cast<uint32>(i) * 0x9e3779b9u | 0x7f80u;
    const uint32 four = (others & ~(0xffu << 8 * byte)) | (static_cast<uint32>(i) & 255) << 8 * byte;
    uint32 in_order[2], alternate[2];
    giwa::arch::int8_to_fp16<1>(four, in_order);
    giwa::arch::int8_to_fp16<2>(four, alternate);
    const auto half = [](uint32 pair, int high) {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16 * high)));
    };
    out[i] = {half(in_order[byte / 2], byte % 2), half(alternate[byte % 2], byte / 2)};
  }
};
struct narrow_each {
  const float* in;
  unsigned char* out;
  GIWA_DEVICE void operator()(int64 i) const { out[i] = giwa::convert<int8_code>{}(in[i]).bits(); }
};

}  // namespace

TEST_CASE("all 8-bit integers become fp16 in both orders of bytes") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<widened> out(4 * 256);
  REQUIRE(giwa::for_all(s, static_cast<int64>(out.size()), widen_each{out.data()}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  const std::vector<widened> got = out.to_host();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float expected = static_cast<signed char>(i % 256);
    CAPTURE(i, expected, got[i].in_order, got[i].alternate);
    CHECK(got[i].in_order == expected);
    CHECK(got[i].alternate == expected);
  }
}

TEST_CASE("numbers round to 8-bit integers on the device as on the host") {
  std::vector<float> in{0, -0.0f, INFINITY, -INFINITY, NAN, 1e38f, -1e38f, 0x1p-149f};
  for (int i = -260; i <= 260; ++i)
    for (const float towards : {-1e9f, 1e9f}) {
      const float x = static_cast<float>(i) / 2;
      in.push_back(x), in.push_back(std::nextafter(x, towards));
    }
  giwa_test::random_sequence random(8);
  for (int i = 0; i < 100000; ++i) in.push_back(__builtin_bit_cast(float, static_cast<uint32>(random.bits())));
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<float> in_gpu(in);
  const gpu_array<unsigned char> out(in.size());
  REQUIRE(giwa::for_all(s, static_cast<int64>(in.size()), narrow_each{in_gpu.data(), out.data()}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  const std::vector<unsigned char> got = out.to_host();
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (got[i] == int8_code(in[i]).bits()) continue;
    CAPTURE(in[i], static_cast<int>(got[i]));
    REQUIRE(got[i] == int8_code(in[i]).bits());
  }
}
