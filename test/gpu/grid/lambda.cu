// SPDX-License-Identifier: MIT
// Lambdas as the function of a for_all; lambda.cmake compiles this file with nvcc's --extended-lambda.
#include <giwa/grid.cuh>
#include <giwa/host.hpp>

#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::for_all;
using giwa::int64;
using giwa::tensor_view;
using giwa_test::gpu_array;

namespace {

// A function of the host and the device; nvcc wants its lambdas in a function with a name.
template <class Where>
giwa::status square_on(Where where, int64* out, int64 n) {
  return for_all(where, n, [=] __host__ __device__(int64 i) { out[i] = i * i; });
}
giwa::status square_on_gpu(cudaStream_t s, int64* out, int64 n) {
  return for_all(s, n, [=] __device__(int64 i) { out[i] = i * i; });
}
giwa::status transpose(cudaStream_t s, tensor_view<const int64, 2> from, tensor_view<int64, 2> to) {
  return for_all(s, giwa::extents{to.extent(0), to.extent(1)},
                 [=] __device__(const giwa::index<2>& i) { to(i[0], i[1]) = from(i[1], i[0]); });
}
giwa::status add_to(cudaStream_t s, tensor_view<int64, 1> x, int64 scale) {
  return for_all(s, giwa::elementwise{x, x}, [=] __host__ __device__(int64 value) { return value + scale; });
}

}  // namespace

TEST_CASE("lambdas for the device, and for host and device") {
  const giwa::stream s = giwa_test::new_stream();
  const int64 n = 5000;
  std::vector<int64> expected(static_cast<std::size_t>(n)), host(expected);
  for (int64 i = 0; i < n; ++i) expected[static_cast<std::size_t>(i)] = i * i;
  REQUIRE(square_on(giwa::host, host.data(), n).ok());
  CHECK(host == expected);

  const gpu_array<int64> out(static_cast<std::size_t>(n)), other(static_cast<std::size_t>(n));
  REQUIRE(square_on(s.get(), out.data(), n).ok());
  CHECK(out.to_host() == expected);
  REQUIRE(square_on_gpu(s, other.data(), n).ok());
  CHECK(other.to_host() == expected);

  REQUIRE(transpose(s, {out.data(), {50, 100}}, {other.data(), {100, 50}}).ok());
  const std::vector<int64> turned = other.to_host();
  for (int64 row = 0; row < 50; ++row)
    for (int64 column = 0; column < 100; ++column)
      REQUIRE(turned[static_cast<std::size_t>(column * 50 + row)] == (row * 100 + column) * (row * 100 + column));

  REQUIRE(add_to(s, {out.data(), {n}}, 7).ok());
  CHECK(out.to_host()[100] == 10007);
}
