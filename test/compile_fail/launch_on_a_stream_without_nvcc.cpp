// EXPECT: giwa::launch: a launch on a stream needs nvcc: compile this file as CUDA, or pass giwa::host.
// SPDX-License-Identifier: MIT
// A host compiler compiles ops for the CPU alone.
#include <giwa/grid.cuh>
#include <giwa/host_executor.cuh>
#include <giwa/tile.cuh>

struct op {
  using params = int;
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 128, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, int, shared_storage&) const {}
};
#if defined(GIWA_COMPILE_FAIL)
void* const where = nullptr;
#else
constexpr giwa::host_t where = giwa::host;
#endif
giwa::status run() { return giwa::launch(where, {.block = 128}, op{}, 1); }
