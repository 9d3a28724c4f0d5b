// EXPECT: no copy fills the gap behind this tile
// SPDX-License-Identifier: MIT
// A stage waits for all bytes of its slots: a tile that is padded to its alignment would be waited for forever.
#include <giwa/grid/device_block.cuh>
#include <giwa/tile/stage_sm90.cuh>

#if defined(GIWA_COMPILE_FAIL)
using tile = giwa::shared_tile<float, giwa::tile_shape<3, 20>>;  // 240 bytes, 256 with the gap
#else
using tile = giwa::shared_tile<float, giwa::tile_shape<8, 20>>;
#endif
using stage = giwa::stage<tile, 2, giwa::tensor_copies<>>;

__global__ void kernel(const __grid_constant__ giwa::tensor_map map) {
  extern __shared__ unsigned char memory[];
  auto in = reinterpret_cast<stage*>(memory)->producer(giwa::device_block{});
  in.put([&](tile& to, const auto& copies) { copies.load(map, giwa::index<2>{0, 0}, to); });
}
