// EXPECT: giwa::pipeline: with tensor_copies<> load() takes the tensor map of make_tile_map(), not a view.
// SPDX-License-Identifier: MIT
// TMA reads a tensor map.
#include <giwa/grid/device_block.cuh>
#include <giwa/tile/pipeline_sm90.cuh>

using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>, giwa::swizzled<giwa::swizzle::bytes_128>>;
using pipeline = giwa::pipeline<tile, 2, giwa::tensor_copies<>>;
#if defined(GIWA_COMPILE_FAIL)
using source = giwa::tensor_view<const float, 2>;
#else
using source = giwa::tensor_map;
#endif

__global__ void kernel(const __grid_constant__ source from) {
  extern __shared__ unsigned char memory[];
  auto in = reinterpret_cast<pipeline*>(memory)->producer(giwa::device_block{});
  in.put([&](tile& to, const auto& copies) { copies.load(from, giwa::index<2>{0, 0}, to); });
}
