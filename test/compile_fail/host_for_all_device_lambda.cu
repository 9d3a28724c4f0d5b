// EXPECT: this lambda is __device__ only and would do nothing on the CPU
// FLAGS: --extended-lambda
// SPDX-License-Identifier: MIT
// A __device__ lambda on a host path would compile and silently do nothing; one for both sides is right.
#include <giwa/grid/host_loop.hpp>

giwa::status run(float* x, giwa::int64 n) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::for_all(giwa::host, n, [=] __device__(giwa::int64 i) { x[i] *= 2; });
#else
  return giwa::for_all(giwa::host, n, [=] __host__ __device__(giwa::int64 i) { x[i] *= 2; });
#endif
}
