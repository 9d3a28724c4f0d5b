// EXPECT: giwa: the left operand of a product must have as many columns as the right one has rows
// SPDX-License-Identifier: MIT
// The operands of a product agree in depth.
#include <giwa/tile/mma_sm80.cuh>

using giwa::fp16, giwa::bf16, giwa::shared_tile, giwa::tile_shape;
using swizzled = giwa::swizzled<giwa::swizzle::bytes_128>;

template <class Left, class Right>
__global__ void kernel() {
  extern __shared__ unsigned char memory[];
  const auto& a = *reinterpret_cast<const Left*>(memory);
  const auto& b = *reinterpret_cast<const Right*>(memory);
  giwa::warp_tile<16, 32> d;
  d.fill(0);
  giwa::multiply_add(0, d, a, 0, b, 0);
}
#if defined(GIWA_COMPILE_FAIL)
template __global__ void
kernel<shared_tile<fp16, tile_shape<64, 64>, swizzled>, shared_tile<fp16, tile_shape<32, 64>, swizzled>>();
#else
template __global__ void
kernel<shared_tile<fp16, tile_shape<64, 64>, swizzled>, shared_tile<fp16, tile_shape<64, 64>, swizzled>>();
#endif
