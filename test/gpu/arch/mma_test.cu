// SPDX-License-Identifier: MIT
// mma.sync through the fragment maps: products of small integers, which every element type holds, are exact.
#include <giwa/arch/mma.cuh>
#include <giwa/tile/fragment.hpp>

#include <cstring>

#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/random.hpp"

using giwa::uint32;
using giwa_test::gpu_array;

namespace {

// What differs between the products.
template <class T>
struct of_16_bits {
  using element = T;
  using a = giwa::mma_a_fragment;
  using b = giwa::mma_b_fragment;
  static constexpr int oldest = std::is_same_v<T, giwa::fp16> ? 75 : 80;
  GIWA_DEVICE static void multiply(float (&d)[4], const uint32 (&x)[4], const uint32 (&y)[2]) {
    giwa::arch::mma_16x8x16<T>(d, x, y);
  }
  static T make(float x) { return giwa::convert<T>{}(x); }
};
struct of_tf32 {
  using element = float;
  using a = giwa::mma_a_tf32_fragment;
  using b = giwa::mma_b_tf32_fragment;
  static constexpr int oldest = 80;
  GIWA_DEVICE static void multiply(float (&d)[4], const uint32 (&x)[4], const uint32 (&y)[2]) {
    giwa::arch::mma_16x8x8_tf32(d, x, y);
  }
  static float make(float x) { return x; }
};

template <class Fragment, class T, int Registers>
GIWA_DEVICE void gather(uint32 (&to)[Registers], const T* matrix) {
  constexpr int per_register = 4 / sizeof(T);
  static_assert(Registers * per_register == Fragment::elements);
#pragma unroll
  for (int r = 0; r < Registers; ++r) {
    T parts[per_register];
#pragma unroll
    for (int i = 0; i < per_register; ++i) {
      const giwa::tile_position at = Fragment::position(static_cast<int>(threadIdx.x), r * per_register + i);
      parts[i] = matrix[at.row * Fragment::columns + at.column];
    }
    memcpy(&to[r], parts, 4);
  }
}

template <class Product>
__global__ void __launch_bounds__(32)
    multiply(const typename Product::element* a, const typename Product::element* b, float* d) {
  using c = giwa::mma_accumulator_fragment;
  uint32 x[4], y[2];
  gather<typename Product::a>(x, a);
  gather<typename Product::b>(y, b);
  float sums[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const giwa::tile_position at = c::position(static_cast<int>(threadIdx.x), i);
    sums[i] = d[at.row * c::columns + at.column];
  }
  Product::multiply(sums, x, y);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const giwa::tile_position at = c::position(static_cast<int>(threadIdx.x), i);
    d[at.row * c::columns + at.column] = sums[i];
  }
}

template <class = void>
__global__ void __launch_bounds__(256) round_to_tf32(const float* x, uint32* bits, int n) {
  const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  if (i < n) bits[i] = giwa::arch::to_tf32(x[i]);
}

bool gpu_is_older_than(int oldest) {
  if (giwa_test::capability() >= oldest) return false;
  WARN("skipped: the instruction needs a newer GPU");
  return true;
}

}  // namespace

TEMPLATE_TEST_CASE("d += a b", "", of_16_bits<giwa::fp16>, of_16_bits<giwa::bf16>, of_tf32) {
  if (gpu_is_older_than(TestType::oldest)) return;
  using element = typename TestType::element;
  constexpr int inner = TestType::a::columns;
  giwa_test::random_sequence random(7);
  const giwa::stream s = giwa_test::new_stream();
  for (int round = 0; round < 20; ++round) {
    std::vector<element> a(16 * inner), b(inner * 8);
    std::vector<float> d(16 * 8), expected(16 * 8);
    const auto small = [&] { return static_cast<float>(random.below(255) - 127); };
    for (element& x : a) x = TestType::make(small());
    for (element& x : b) x = TestType::make(small());
    for (float& x : d) x = static_cast<float>(random.below(1 << 20));
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 8; ++column) {
        float sum = d[static_cast<std::size_t>(row * 8 + column)];  // below 2^24: exact in any order
        for (int k = 0; k < inner; ++k)
          sum += static_cast<float>(a[static_cast<std::size_t>(row * inner + k)]) *
                 static_cast<float>(b[static_cast<std::size_t>(k * 8 + column)]);
        expected[static_cast<std::size_t>(row * 8 + column)] = sum;
      }
    const gpu_array<element> a_gpu(a), b_gpu(b);
    const gpu_array<float> d_gpu(d);
    multiply<TestType><<<1, 32, 0, s>>>(a_gpu.data(), b_gpu.data(), d_gpu.data());
    giwa_test::check_cuda(cudaGetLastError());
    REQUIRE(giwa::synchronize(s).ok());
    REQUIRE(d_gpu.to_host() == expected);
  }
}

TEST_CASE("floats are rounded to tf32, ties away from zero") {
  if (gpu_is_older_than(80)) return;
  giwa_test::random_sequence random(8);
  std::vector<float> x;
  for (int i = 0; i < 4000; ++i) {
    // Finite, below the last step before infinity; every third a tie.
    uint32 bits = static_cast<uint32>(random.bits()) & 0xbfffffffu;
    if (i % 3 == 0) bits = (bits & ~0x1fffu) | 0x1000u;
    float value;
    std::memcpy(&value, &bits, 4);
    x.push_back(value);
  }
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<float> x_gpu(x);
  const gpu_array<uint32> bits_gpu(x.size());
  round_to_tf32<><<<16, 256, 0, s>>>(x_gpu.data(), bits_gpu.data(), static_cast<int>(x.size()));
  giwa_test::check_cuda(cudaGetLastError());
  REQUIRE(giwa::synchronize(s).ok());
  const std::vector<uint32> got = bits_gpu.to_host();
  for (std::size_t i = 0; i < x.size(); ++i) {
    uint32 bits;
    std::memcpy(&bits, &x[i], 4);
    CAPTURE(i, bits);
    REQUIRE((got[i] & ~0x1fffu) == ((bits + 0x1000u) & ~0x1fffu));
  }
}
