// SPDX-License-Identifier: MIT
// Tensor maps by the driver's own encoder: what it takes, and that what it refuses comes back as a status.
#include <giwa/device/tensor_map.hpp>

#include <string>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::bf16, giwa::fp16, giwa::int64, giwa::status_code, giwa::swizzle, giwa::tensor_view;

namespace {

template <class T, int Rank>
giwa::status encoded(const giwa::index<Rank>& extents, const giwa::index<Rank>& box, swizzle pattern) {
  static const giwa_test::gpu_array<double> memory(1 << 16);
  const tensor_view<T, Rank> view{reinterpret_cast<T*>(memory.data()), extents};
  const giwa::result<giwa::tensor_map> map = giwa::make_tensor_map(view, box, pattern, "k");
  CHECK(giwa_test::no_error_left());
  return map.state;
}

bool has_tensor_maps() { return giwa_test::capability() >= 90; }

}  // namespace

TEST_CASE("the driver encodes maps of every type, swizzle and number of dimensions") {
  if (!has_tensor_maps()) return;
  CHECK(encoded<fp16, 1>({1000}, {64}, swizzle::none).ok());
  CHECK(encoded<const bf16, 2>({100, 64}, {64, 64}, swizzle::bytes_128).ok());
  CHECK(encoded<float, 3>({3, 5, 40}, {1, 8, 16}, swizzle::bytes_64).ok());
  CHECK(encoded<double, 4>({3, 5, 7, 40}, {2, 1, 8, 4}, swizzle::bytes_32).ok());
  CHECK(encoded<const float, 5>({2, 3, 5, 7, 40}, {1, 2, 1, 4, 32}, swizzle::bytes_128).ok());
  CHECK(encoded<fp16, 2>({100, 64}, {256, 64}, swizzle::bytes_128).ok());
}

TEST_CASE("a box that the driver refuses becomes a status") {
  if (!has_tensor_maps()) return;
  for (const giwa::status& s : {encoded<fp16, 2>({100, 64}, {257, 64}, swizzle::bytes_128),  // too many rows
                                encoded<fp16, 2>({100, 128}, {8, 128}, swizzle::bytes_128),  // wider than the span
                                encoded<float, 2>({100, 64}, {8, 3}, swizzle::none),         // 12 bytes
                                encoded<float, 2>({100, 64}, {0, 64}, swizzle::none)}) {     // nothing
    CHECK(s.code == status_code::invalid_argument);
    CHECK(std::string(s.argument) == "k");
    CHECK(s.cuda_code != 0);
  }
}
