// EXPECT: giwa::launch: pass the params of the op as one argument of type Op::params
// SPDX-License-Identifier: MIT
// The params of an op are one argument.
#include <giwa/grid/launch.cuh>

struct op {
  struct params {
    float* out;
    int n;
  };
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 128, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, const params&, shared_storage&) const {}
};
#if defined(GIWA_COMPILE_FAIL)
giwa::status run(cudaStream_t s, float* out) { return giwa::launch(s, {.block = 128}, op{}, out, 8); }
#else
giwa::status run(cudaStream_t s, float* out) { return giwa::launch(s, {.block = 128}, op{}, {out, 8}); }
#endif
