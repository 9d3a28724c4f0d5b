// EXPECT: with Bytes=262144L, Limit=232448L
// SPDX-License-Identifier: MIT
// A stage that cannot fit is an error of the compilation, which names its bytes and the limit.
#include <giwa/grid/launch.cuh>
#include <giwa/tile/stage.cuh>

struct op {
  struct params {};
  using slot = giwa::shared_tile<float, giwa::tile_shape<128, 128>, giwa::swizzled<giwa::swizzle::bytes_128>>;  // 64 KB
  struct shared_storage {
#if defined(GIWA_COMPILE_FAIL)
    giwa::stage<slot, 4> stage;
#else
    giwa::stage<slot, 3> stage;
#endif
  };
  static constexpr int max_threads = 128, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, const params&, shared_storage&) const {}
};

giwa::status run(cudaStream_t s) { return giwa::launch(s, {.block = 128}, op{}, {}); }
