// EXPECT: is larger than the shared memory of a block on any GPU
// SPDX-License-Identifier: MIT
// Shared memory that no GPU has is an error of the compilation, which names both numbers.
#include <giwa/grid/launch.cuh>

struct op {
  struct params {};
  struct shared_storage {
#if defined(GIWA_COMPILE_FAIL)
    char bytes[227 * 1024 + 1];
#else
    char bytes[227 * 1024];
#endif
  };
  static constexpr int max_threads = 128, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, const params&, shared_storage&) const {}
};

giwa::status run(cudaStream_t s) { return giwa::launch(s, {.block = 128}, op{}, {}); }
