// EXPECT: with Bytes=262144L, Limit=232448L
// SPDX-License-Identifier: MIT
// A pipeline that cannot fit fails to compile; the error names its bytes and the limit.
#include <giwa/grid/launch.cuh>
#include <giwa/tile/pipeline.cuh>

struct op {
  struct params {};
  using stage =
      giwa::shared_tile<float, giwa::tile_shape<128, 128>, giwa::swizzled<giwa::swizzle::bytes_128>>;  // 64 KB
  struct shared_storage {
#if defined(GIWA_COMPILE_FAIL)
    giwa::pipeline<stage, 4> pipeline;
#else
    giwa::pipeline<stage, 3> pipeline;
#endif
  };
  static constexpr int max_threads = 128, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, const params&, shared_storage&) const {}
};

giwa::status run(cudaStream_t s) { return giwa::launch(s, {.block = 128}, op{}, {}); }
