// SPDX-License-Identifier: MIT
// e4m3 on the device: all values, and numbers around every boundary, convert to the bits of the host.
#include <giwa/arch/convert_fp8.cuh>
#include <giwa/arch/round_fp8.hpp>
#include <giwa/grid.cuh>

#include <cmath>
#include <cstring>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/random.hpp"

using giwa::e4m3;
using giwa::int64;
using giwa::uint32;
using giwa_test::gpu_array;

namespace {

float value_of(int bits) { return static_cast<float>(e4m3::from_bits(static_cast<unsigned char>(bits))); }

struct widened {
  float one;     // by the type
  float packed;  // by way of a pair of fp16
};
// Element i is e4m3 number i; its three neighbours in the register are others, NaN among them.
struct widen_each {
  widened* out;
  GIWA_DEVICE void operator()(int64 i) const {
    const auto bits = static_cast<uint32>(i) & 255;
    const uint32 others = static_cast<uint32>(i) * 0x9e3779b9u | 0x7f00u;
    const int byte = static_cast<int>(i >> 8) & 3;
    uint32 pair[2];
    giwa::arch::e4m3_to_fp16((others & ~(0xffu << 8 * byte)) | bits << 8 * byte, pair);
    const auto half = static_cast<unsigned short>(pair[byte / 2] >> 16 * (byte % 2));
    out[i] = {giwa::convert<float>{}(e4m3::from_bits(static_cast<unsigned char>(bits))),
              __half2float(__ushort_as_half(half))};
  }
};

struct narrowed {
  unsigned char one, packed;
};
struct narrow_each {
  const float* in;
  narrowed* out;
  GIWA_DEVICE void operator()(int64 i) const {
    float four[4] = {1.0f, -1e9f, 0.3f, __int_as_float(0x7fffffff)};
    const int byte = static_cast<int>(i) & 3;
    for (int j = 0; j < 4; ++j)
      if (j == byte) four[j] = in[i];
    out[i] = {giwa::convert<e4m3>{}(in[i]).bits(),
              static_cast<unsigned char>(giwa::arch::fp32_to_e4m3(four) >> 8 * byte)};
  }
};

bool same(float a, float b) { return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST_CASE("all e4m3 numbers have on the device the value that they have on the host, one by one and four at once") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<widened> out(4 * 256);
  REQUIRE(giwa::for_all(s, static_cast<int64>(out.size()), widen_each{out.data()}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  const std::vector<widened> got = out.to_host();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float expected = value_of(static_cast<int>(i % 256));
    CAPTURE(i, expected, got[i].one, got[i].packed);
    CHECK(same(got[i].one, expected));
    CHECK(same(got[i].packed, expected));
  }
}

TEST_CASE("numbers round to e4m3 on the device as on the host, one by one and four at once") {
  std::vector<float> in{0, -0.0f, INFINITY, -INFINITY, NAN, 464, 480, 1e38f, 1e-38f, 0x1p-149f, 0x1p-10f};
  for (int bits = 0; bits < 0x7f; ++bits)
    for (const float sign : {1.0f, -1.0f}) {
      const float middle = bits == 0x7e ? 464 : (value_of(bits) + value_of(bits + 1)) / 2;
      for (const float x : {value_of(bits), middle, std::nextafter(middle, 1e3f), std::nextafter(middle, 0.0f)})
        in.push_back(sign * x);
    }
  giwa_test::random_sequence random(8);
  for (int i = 0; i < 100000; ++i) in.push_back(__builtin_bit_cast(float, static_cast<uint32>(random.bits())));

  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<float> in_gpu(in);
  const gpu_array<narrowed> out(in.size());
  REQUIRE(giwa::for_all(s, static_cast<int64>(in.size()), narrow_each{in_gpu.data(), out.data()}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  const std::vector<narrowed> got = out.to_host();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const int expected = e4m3(in[i]).bits(), one = got[i].one, packed = got[i].packed;
    if (one == expected && packed == expected) continue;
    CAPTURE(in[i], expected, one, packed);
    REQUIRE(one == expected);
    REQUIRE(packed == expected);
  }
}
