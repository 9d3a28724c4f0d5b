// EXPECT: giwa::multiply: wgmma reads swizzled tiles: use the layout swizzled<swizzle::bytes_128>.
// SPDX-License-Identifier: MIT
// wgmma reads swizzled tiles only.
#include <giwa/tile/mma_sm90.cuh>

using giwa::fp16, giwa::bf16, giwa::shared_tile, giwa::tile_shape;
using swizzled = giwa::swizzled<giwa::swizzle::bytes_128>;

template <class Left, class Right>
__global__ void kernel() {
  extern __shared__ unsigned char memory[];
  const auto& a = *reinterpret_cast<const Left*>(memory);
  const auto& b = *reinterpret_cast<const Right*>(memory);
  giwa::warpgroup_tile<64> d;
  giwa::multiply(d, a, 0, b, false);
}
#if defined(GIWA_COMPILE_FAIL)
template __global__ void
kernel<shared_tile<fp16, tile_shape<64, 64>, swizzled>, shared_tile<fp16, tile_shape<64, 64>>>();
#else
template __global__ void
kernel<shared_tile<fp16, tile_shape<64, 64>, swizzled>, shared_tile<fp16, tile_shape<64, 64>, swizzled>>();
#endif
