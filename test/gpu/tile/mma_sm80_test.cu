// SPDX-License-Identifier: MIT
// Products by mma.sync: every type, both directions of both operands, every layout, parts of larger tiles, exact on integers.
#include <giwa/tile/mma_sm80.cuh>

#include "gpu/tile/product_cases.cuh"

using giwa::bf16, giwa::fp16, giwa::padded, giwa::paired, giwa::row_major, giwa::swizzle, giwa::swizzled;
using giwa_test::product_params;

namespace {

/// A warp multiplies (Rows, Columns) of (2 Rows, 2 Columns) = (2 Rows, Depth) (Depth, 2 Columns).
template <class T, int Rows, int Columns, int Depth, class LeftLayout, bool LeftTurned, class RightLayout,
          bool RightTurned>
struct warp_op {
  using element = T;
  using params = product_params;
  static constexpr int max_threads = 32, min_blocks = 1;
  static constexpr int window_rows = Rows, window_columns = Columns, rows = 2 * Rows, columns = 2 * Columns,
                       depth = Depth;
  template <int First, int Second, bool Turned>
  using turned_shape = giwa::tile_shape<Turned ? Second : First, Turned ? First : Second>;
  struct shared_storage {
    giwa::shared_tile<T, turned_shape<rows, Depth, LeftTurned>, LeftLayout> a;
    giwa::shared_tile<T, turned_shape<Depth, columns, RightTurned>, RightLayout> b;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    giwa_test::fill_operand<LeftTurned>(block, p.a, s.a);
    giwa_test::fill_operand<RightTurned>(block, p.b, s.b);
    block.sync();
    giwa::warp_tile<Rows, Columns> d;
    const auto at = [&](int r, int c) -> float& { return p.d[(p.first_row + r) * columns + p.first_column + c]; };
    d.for_each(block.lane(), [&](float& x, int r, int c) { x = p.accumulate ? at(r, c) : 0.0f; });
    giwa::multiply_add(block.lane(), d, giwa_test::as_operand<LeftTurned>(s.a), p.first_row,
                       giwa_test::as_operand<RightTurned>(s.b), p.first_column);
    d.for_each(block.lane(), [&](float& x, int r, int c) { at(r, c) = x; });
  }
};

using swizzled_128 = swizzled<swizzle::bytes_128>;
using swizzled_64 = swizzled<swizzle::bytes_64>;
using swizzled_32 = swizzled<swizzle::bytes_32>;

template <class Op>
void check_product() {
  if (giwa_test::capability() < (std::is_same_v<typename Op::element, fp16> ? 75 : 80)) return;
  giwa_test::random_sequence random(9);
  for (int first_row = 0; first_row <= Op::window_rows; first_row += 8)
    for (int first_column = 0; first_column <= Op::window_columns; first_column += 8) {
      const bool accumulate = (first_row + first_column) % 32 == 0;
      CAPTURE(first_row, first_column, accumulate);
      CHECK(giwa_test::product_is_exact<Op>(Op::rows, Op::columns, Op::depth, Op::window_rows, Op::window_columns,
                                            first_row, first_column, accumulate, random));
    }
}

}  // namespace

TEMPLATE_TEST_CASE("mma.sync multiplies 16-bit tiles", "",
                   (warp_op<fp16, 64, 32, 64, swizzled_128, false, swizzled_128, false>),
                   (warp_op<fp16, 16, 64, 128, swizzled_128, false, swizzled_128, true>),
                   (warp_op<bf16, 32, 32, 32, swizzled_64, true, swizzled_64, true>),
                   (warp_op<fp16, 16, 16, 48, padded<8>, true, row_major, false>),
                   (warp_op<bf16, 16, 48, 16, swizzled_32, false, swizzled_32, false>),
                   (warp_op<bf16, 32, 16, 80, row_major, false, padded<8>, true>),
                   (warp_op<fp16, 48, 16, 32, swizzled_32, true, swizzled_64, false>),
                   (warp_op<fp16, 32, 32, 80, paired, false, paired, true>),
                   (warp_op<bf16, 16, 48, 48, paired, true, paired, false>)) {
  check_product<TestType>();
}

TEMPLATE_TEST_CASE("mma.sync multiplies 32-bit tiles", "",
                   (warp_op<float, 32, 32, 32, swizzled_128, false, swizzled_128, true>),
                   (warp_op<float, 16, 16, 8, padded<1>, true, swizzled_64, false>),
                   (warp_op<float, 16, 32, 16, paired, true, paired, true>),
                   (warp_op<float, 16, 48, 24, row_major, false, padded<4>, false>),
                   (warp_op<float, 64, 16, 16, swizzled_32, true, giwa::transposable, true>)) {
  check_product<TestType>();
}
