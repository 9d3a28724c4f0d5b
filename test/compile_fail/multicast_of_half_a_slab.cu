// EXPECT: giwa: the number of slabs of a multicast tile must be a multiple of the blocks of the cluster
// SPDX-License-Identifier: MIT
// The blocks of a cluster share a tile slab by slab.
#include <giwa/grid/device_block.cuh>
#include <giwa/tile/pipeline_sm90.cuh>

#if defined(GIWA_COMPILE_FAIL)
constexpr int columns = 96;  // three slabs for two blocks
#else
constexpr int columns = 128;
#endif
using tile = giwa::shared_tile<float, giwa::tile_shape<8, columns>, giwa::swizzled<giwa::swizzle::bytes_128>>;
using pipeline = giwa::pipeline<tile, 2, giwa::tensor_copies<2>>;

__global__ void kernel(const __grid_constant__ giwa::tensor_map map) {
  extern __shared__ unsigned char memory[];
  auto in = reinterpret_cast<pipeline*>(memory)->producer(giwa::device_block{});
  in.put([&](tile& to, const auto& copies) { copies.multicast(map, giwa::index<2>{0, 0}, to, 0); });
}
