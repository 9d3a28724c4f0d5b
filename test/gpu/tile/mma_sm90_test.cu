// SPDX-License-Identifier: MIT
// Products by wgmma: every type, direction and swizzle of both operands, several depths and widths, exact on integers.
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/tile/mma_sm90.cuh>

#include "gpu/tile/product_cases.cuh"

using giwa::bf16, giwa::fp16, giwa::swizzle;
using giwa_test::product_params;

namespace {

constexpr auto along_k = giwa::arch::major::k, across = giwa::arch::major::mn;

/// An operand of T in memory: its swizzle, and whether its rows run along k.
template <giwa::swizzle Pattern, giwa::arch::major Major>
struct in_memory {
  static constexpr bool is_along_k = Major == along_k;
  template <class T, int Rows, int Columns>
  using tile = giwa::shared_tile<T, giwa::tile_shape<Rows, Columns>, giwa::swizzled<Pattern>>;
};

struct op_of_a_warpgroup {
  using params = product_params;
  static constexpr int max_threads = 128, min_blocks = 1;
};

/// d (128, Columns) = a (128, Depth) b (Depth, Columns), of which an op computes 64 rows.
template <class T, class Left, class Right, int Columns, int Depth>
struct shared_op : op_of_a_warpgroup {
  static constexpr int rows = 128, columns = Columns, depth = Depth;
  static constexpr bool left_turned = !Left::is_along_k, right_turned = Right::is_along_k;
  struct shared_storage {
    typename Left::template tile<T, left_turned ? Depth : rows, left_turned ? rows : Depth> a;
    typename Right::template tile<T, right_turned ? Columns : Depth, right_turned ? Depth : Columns> b;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    giwa_test::fill_operand<left_turned>(block, p.a, s.a);
    giwa_test::fill_operand<right_turned>(block, p.b, s.b);
    giwa::arch::fence_async_proxy();
    block.sync();
    giwa::warpgroup_tile<Columns> d;
    d.for_each(block.rank(), [&](float& x, int r, int c) { x = p.d[(p.first_row + r) * Columns + c]; });
    giwa::arch::fence_operand(d.value);
    giwa::arch::wgmma_fence();
    giwa::multiply(d, giwa_test::as_operand<left_turned>(s.a), p.first_row, giwa_test::as_operand<right_turned>(s.b),
                   p.accumulate);
    giwa::arch::wgmma_commit();
    giwa::arch::wgmma_wait<0>();
    giwa::arch::fence_operand(d.value);
    d.for_each(block.rank(), [&](float& x, int r, int c) { p.d[(p.first_row + r) * Columns + c] = x; });
  }
};

/// The same for 64 rows of a that come out of another product's accumulator, by products of Width columns and `Step` of the depth.
template <class T, class Right, int Columns, int Depth, int Width = Columns, int Step = Depth>
struct registers_op : op_of_a_warpgroup {
  static constexpr int rows = 64, columns = Columns, depth = Depth;
  static constexpr bool right_turned = Right::is_along_k;
  struct shared_storage {
    typename Right::template tile<T, right_turned ? Columns : Depth, right_turned ? Depth : Columns> b;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    giwa_test::fill_operand<right_turned>(block, p.b, s.b);
    giwa::arch::fence_async_proxy();
    block.sync();
    giwa::warpgroup_tile<Depth> a;
    a.for_each(block.rank(), [&](float& x, int r, int c) { x = p.a[r * Depth + c]; });
    giwa::uint32 words[Depth / 4];
    giwa::to_operand<T>(a, words);
    giwa::arch::fence_operand(words);
    for (int first = 0; first < Columns; first += Width) {
      giwa::warpgroup_tile<Width> d;
      d.for_each(block.rank(), [&](float& x, int r, int c) { x = p.d[r * Columns + first + c]; });
      giwa::arch::fence_operand(d.value);
      giwa::arch::wgmma_fence();
      GIWA_UNROLL
      for (int k = 0; k < Depth; k += Step) {
        giwa::uint32 part[Step / 4];
        GIWA_UNROLL
        for (int i = 0; i < Step / 4; ++i) part[i] = words[k / 4 + i];
        giwa::multiply(d, part, giwa_test::as_operand<right_turned>(s.b), p.accumulate || k > 0, first, k);
      }
      giwa::arch::wgmma_commit();
      giwa::arch::wgmma_wait<0>();
      giwa::arch::fence_operand(d.value);
      d.for_each(block.rank(), [&](float& x, int r, int c) { p.d[r * Columns + first + c] = x; });
    }
  }
};

using k_32 = in_memory<swizzle::bytes_32, along_k>;
using k_64 = in_memory<swizzle::bytes_64, along_k>;
using k_128 = in_memory<swizzle::bytes_128, along_k>;
using mn_32 = in_memory<swizzle::bytes_32, across>;
using mn_64 = in_memory<swizzle::bytes_64, across>;
using mn_128 = in_memory<swizzle::bytes_128, across>;

template <class Op>
void check_product() {
  if (!giwa_test::has_wgmma()) return;
  giwa_test::random_sequence random(7);
  for (int first_row = 0; first_row < Op::rows; first_row += 64)
    for (const bool accumulate : {false, true}) {
      CAPTURE(first_row, accumulate);
      CHECK(giwa_test::product_is_exact<Op>(Op::rows, Op::columns, Op::depth, 64, Op::columns, first_row, 0, accumulate,
                                            random));
    }
}

}  // namespace

// A tile of several slabs along the direction it runs in is walked by the descriptor (mn) or by the instructions (k).
TEMPLATE_TEST_CASE("wgmma multiplies 16-bit tiles in shared memory", "", (shared_op<fp16, k_128, mn_128, 256, 64>),
                   (shared_op<fp16, mn_128, k_128, 64, 128>), (shared_op<fp16, k_64, mn_64, 96, 96>),
                   (shared_op<fp16, mn_64, k_64, 80, 64>), (shared_op<fp16, k_32, mn_32, 176, 48>),
                   (shared_op<fp16, mn_32, k_32, 16, 16>), (shared_op<bf16, k_128, k_128, 176, 128>),
                   (shared_op<bf16, mn_64, mn_128, 128, 32>), (shared_op<bf16, k_32, k_64, 112, 32>),
                   (shared_op<bf16, mn_32, mn_32, 80, 80>)) {
  check_product<TestType>();
}

TEMPLATE_TEST_CASE("wgmma multiplies 32-bit tiles in shared memory", "", (shared_op<float, k_128, k_128, 64, 64>),
                   (shared_op<float, k_64, k_32, 16, 16>), (shared_op<float, k_32, k_64, 256, 32>),
                   (shared_op<float, k_128, k_128, 176, 96>)) {
  check_product<TestType>();
}

TEMPLATE_TEST_CASE("wgmma multiplies an operand in registers", "", (registers_op<fp16, mn_128, 128, 176>),
                   (registers_op<bf16, mn_64, 64, 128>), (registers_op<fp16, k_32, 256, 16>),
                   (registers_op<bf16, k_64, 80, 64>), (registers_op<fp16, mn_128, 128, 128, 64, 32>),
                   (registers_op<bf16, k_128, 128, 64, 16, 16>), (registers_op<fp16, mn_32, 48, 96, 16, 48>)) {
  check_product<TestType>();
}
