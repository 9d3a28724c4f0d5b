// EXPECT: giwa::pipeline: one stage is used while another is filled: choose Stages of at least 2.
// SPDX-License-Identifier: MIT
// The loop of a block without roles fills a stage while it uses another, whoever fills it.
#include <giwa/grid/device_block.cuh>
#include <giwa/tile/pipeline_sm90.cuh>

#if defined(GIWA_COMPILE_FAIL)
constexpr int depth = 1;
#else
constexpr int depth = 2;
#endif
using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>, giwa::swizzled<giwa::swizzle::bytes_128>>;
using pipeline = giwa::pipeline<tile, depth, giwa::tensor_copies<>>;

__global__ void kernel(const __grid_constant__ giwa::tensor_map map, int steps) {
  extern __shared__ unsigned char memory[];
  reinterpret_cast<pipeline*>(memory)->stream(
      giwa::device_block{}, steps,
      [&](tile& to, const auto& copies, int step) {
        copies.load(map, giwa::index<2>{0, 32 * step}, to);
      },
      [](const tile&, int) {});
}
