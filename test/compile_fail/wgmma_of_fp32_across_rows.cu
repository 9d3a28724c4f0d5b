// EXPECT: giwa::multiply: wgmma reads 32-bit and 8-bit operands along k only: pass a as it is and b as transposed(tile).
// SPDX-License-Identifier: MIT
// wgmma takes fp32 along k only, so that b is given as the transposed of its rows.
#include <giwa/tile/mma_sm90.cuh>

using giwa::fp16, giwa::bf16, giwa::shared_tile, giwa::tile_shape;
using swizzled = giwa::swizzled<giwa::swizzle::bytes_128>;

template <class Left, class Right>
__global__ void kernel() {
  extern __shared__ unsigned char memory[];
  const auto& a = *reinterpret_cast<const Left*>(memory);
  const auto& b = *reinterpret_cast<const Right*>(memory);
  giwa::warpgroup_tile<64> d;
  if constexpr (requires { b.tile; })
    giwa::multiply(d, a, 0, giwa::transposed(b.tile), false);
  else
    giwa::multiply(d, a, 0, b, false);
}
#if defined(GIWA_COMPILE_FAIL)
template __global__ void
kernel<shared_tile<float, tile_shape<64, 64>, swizzled>, shared_tile<float, tile_shape<64, 64>, swizzled>>();
#else
template __global__ void kernel<shared_tile<float, tile_shape<64, 64>, swizzled>,
                                giwa::transposed_tile<shared_tile<float, tile_shape<64, 64>, swizzled>>>();
#endif
