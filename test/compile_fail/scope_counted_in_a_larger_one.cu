// EXPECT: giwa: Unit must be a smaller scope than Level: thread < warp < block < cluster < grid
// SPDX-License-Identifier: MIT
// A thread has a rank in a block; a block has none in a thread.
#include <giwa/grid/scope.cuh>

using giwa::scope;

__global__ void kernel(giwa::int64* out) {
#if defined(GIWA_COMPILE_FAIL)
  *out = giwa::rank<scope::block, scope::thread>();
#else
  *out = giwa::rank<scope::thread, scope::block>();
#endif
}
