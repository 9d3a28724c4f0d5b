// SPDX-License-Identifier: MIT
// wgmma of every width and type, from shared memory and from registers, through the fragment maps, exact on integers.
#include <giwa/arch/matrix_descriptor.hpp>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/arch/wgmma.cuh>
#include <giwa/tile/fragment.hpp>
#include <giwa/tile/shared_tile.hpp>

#include "support/hopper.cuh"
#include "support/random.hpp"

using giwa::bf16, giwa::fp16, giwa::uint32;
using giwa_test::gpu_array;

namespace {

constexpr auto pattern = giwa::swizzle::bytes_32;
constexpr auto along_k = giwa::arch::major::k;

template <class T>
using left_fragment = std::conditional_t<sizeof(T) == 2, giwa::wgmma_a_fragment, giwa::wgmma_a_tf32_fragment>;

struct product_params {
  const float *a, *b;  // (64, k), (columns, k), k = 32 bytes
  float* d;            // (2, 64, columns)
};

/// d[0] = a b, from shared memory, over NaN; then d[1] = d[0] + a b, with a in registers.
template <class T, int Columns>
struct two_products_op {
  static constexpr int max_threads = 128, min_blocks = 1, k = 32 / int{sizeof(T)};
  using params = product_params;
  struct shared_storage {
    giwa::shared_tile<T, giwa::tile_shape<64, k>, giwa::swizzled<pattern>> a;
    giwa::shared_tile<T, giwa::tile_shape<Columns, k>, giwa::swizzled<pattern>> b;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    constexpr int eight_rows = 8 * span_of(pattern);
    for (int i = block.rank(); i < 64 * k; i += 128) s.a(i / k, i % k) = giwa::convert<T>{}(p.a[i]);
    for (int i = block.rank(); i < Columns * k; i += 128) s.b(i / k, i % k) = giwa::convert<T>{}(p.b[i]);
    uint32 words[4];
    GIWA_UNROLL
    for (int w = 0; w < 4; ++w) {
      T parts[4 / sizeof(T)];
      GIWA_UNROLL
      for (int i = 0; i < int{4 / sizeof(T)}; ++i) {
        const auto at = left_fragment<T>::position(block.rank(), w * int{4 / sizeof(T)} + i);
        parts[i] = giwa::convert<T>{}(p.a[at.row * k + at.column]);
      }
      __builtin_memcpy(&words[w], parts, 4);
    }
    giwa::arch::fence_async_proxy();
    block.sync();
    constexpr giwa::uint64 shape = giwa::arch::matrix_descriptor(pattern, 16, eight_rows);
    const giwa::uint64 a = giwa::arch::descriptor_at(shape, giwa::arch::shared_address(s.a.data()));
    const giwa::uint64 b = giwa::arch::descriptor_at(shape, giwa::arch::shared_address(s.b.data()));

    using wgmma = giwa::arch::wgmma<Columns>;
    float sum[Columns / 2];
    GIWA_UNROLL
    for (float& x : sum) x = __int_as_float(-1);  // NaN
    giwa::arch::fence_operand(sum);
    giwa::arch::fence_operand(words);
    giwa::arch::wgmma_fence();
    wgmma::template shared<T, along_k, along_k>(sum, a, b, 0);
    giwa::arch::wgmma_commit();
    giwa::arch::wgmma_wait<0>();
    giwa::arch::fence_operand(sum);
    write(p.d, block.rank(), sum);
    giwa::arch::wgmma_fence();
    wgmma::template registers<T, along_k>(sum, words, b, 1);
    giwa::arch::wgmma_commit();
    giwa::arch::wgmma_wait<0>();
    giwa::arch::fence_operand(sum);
    write(p.d + 64 * Columns, block.rank(), sum);
  }

 private:
  GIWA_DEVICE static void write(float* d, int thread, const float (&values)[Columns / 2]) {
    GIWA_UNROLL
    for (int i = 0; i < Columns / 2; ++i) {
      const giwa::tile_position at = giwa::wgmma_accumulator_fragment<Columns>::position(thread, i);
      d[at.row * Columns + at.column] = values[i];
    }
  }
};

template <class T, int Columns>
bool is_exact() {
  using op = two_products_op<T, Columns>;
  giwa_test::random_sequence random(Columns);
  const auto integers = [&](int count) {
    std::vector<float> v(static_cast<std::size_t>(count));
    for (float& x : v) x = static_cast<float>(random.below(33) - 16);
    return v;
  };
  const std::vector<float> a = integers(64 * op::k), b = integers(Columns * op::k);
  const gpu_array<float> a_gpu(a), b_gpu(b), d_gpu(2 * 64 * Columns);
  giwa_test::run_op<op>({.block = 128}, {a_gpu.data(), b_gpu.data(), d_gpu.data()});
  const std::vector<float> d = d_gpu.to_host();
  bool same = true;
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < Columns; ++column) {
      float expected = 0;
      for (int k = 0; k < op::k; ++k)
        expected += a[static_cast<std::size_t>(row * op::k + k)] * b[static_cast<std::size_t>(column * op::k + k)];
      const auto i = static_cast<std::size_t>(row * Columns + column);
      same = same && d[i] == expected && d[i + 64 * Columns] == 2 * expected;
    }
  return same;
}

template <class T, int... Sixteenths>
void check_widths(std::integer_sequence<int, Sixteenths...>) {
  const bool exact[] = {is_exact<T, 16 * (Sixteenths + 1)>()...};
  for (std::size_t i = 0; i < sizeof...(Sixteenths); ++i) {
    CAPTURE(16 * (i + 1));
    CHECK(exact[i]);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("wgmma of every width multiplies exactly", "", fp16, bf16, float) {
  if (giwa_test::has_wgmma()) check_widths<TestType>(std::make_integer_sequence<int, 16>{});
}
