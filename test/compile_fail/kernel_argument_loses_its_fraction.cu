// EXPECT: giwa::launch: a floating-point argument would be truncated to an integer parameter
// SPDX-License-Identifier: MIT
// A floating-point argument does not become an integer on its way to a kernel.
#include <giwa/grid/launch.cuh>

__global__ void kernel(int, float) {}

#if defined(GIWA_COMPILE_FAIL)
using argument = double;
#else
using argument = long;
#endif
giwa::status run(cudaStream_t s, argument x) { return giwa::launch(s, {}, kernel, x, x); }
