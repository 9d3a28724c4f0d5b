// EXPECT: this lambda is __device__ only and would do nothing on the CPU
// FLAGS: --extended-lambda
// SPDX-License-Identifier: MIT
// A __device__ lambda over whole arrays of the host is refused in the same words as one over indices.
#include <giwa/grid/elementwise.hpp>
#include <giwa/grid/host_loop.hpp>

giwa::status run(giwa::tensor_view<float, 1> x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::for_all(giwa::host, giwa::elementwise{x, x}, [=] __device__(float value) { return 2 * value; });
#else
  return giwa::for_all(giwa::host, giwa::elementwise{x, x}, [=] __host__ __device__(float value) { return 2 * value; });
#endif
}
