// SPDX-License-Identifier: MIT
// 4-bit integers on the device: all become the fp16 numbers of the host, in their places.
#include <giwa/arch/convert_int4.cuh>
#include <giwa/grid.cuh>
#include <giwa/numeric/precision.hpp>

#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::int64;
using giwa::uint32;

namespace {

// Element i is integer i % 16 in place i / 16 of a register with others.
struct widen_each {
  float* out;
  GIWA_DEVICE void operator()(int64 i) const {
    const int place = static_cast<int>(i >> 4) & 7;
    const uint32 others = static_cast<uint32>(i) * 0x9e3779b9u | 0x7f80u;
    uint32 pair[4];
    giwa::arch::int4_to_fp16((others & ~(15u << 4 * place)) | (static_cast<uint32>(i) & 15) << 4 * place, pair);
    out[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(pair[place % 4] >> place / 4 * 16)));
  }
};

}  // namespace

TEST_CASE("all 4-bit integers become fp16 in all places of a register") {
  const giwa::stream s = giwa_test::new_stream();
  const giwa_test::gpu_array<float> out(8 * 16);
  REQUIRE(giwa::for_all(s, static_cast<int64>(out.size()), widen_each{out.data()}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  const std::vector<float> got = out.to_host();
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i, got[i]);
    CHECK(got[i] == static_cast<float>(static_cast<int>(i % 16) - (i % 16 < 8 ? 0 : 16)));
  }
}
