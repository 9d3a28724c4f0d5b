// EXPECT: giwa::launch: each argument must convert to the kernel's parameter at its position.
// SPDX-License-Identifier: MIT
// A pointer to another type is no argument for a kernel.
#include <giwa/grid/launch.cuh>

__global__ void kernel(const float*) {}

#if defined(GIWA_COMPILE_FAIL)
using argument = double*;
#else
using argument = float*;
#endif
giwa::status run(cudaStream_t s, argument data) { return giwa::launch(s, {}, kernel, data); }
