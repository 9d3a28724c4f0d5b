// EXPECT: giwa::launch: pass one argument for each parameter of the kernel.
// SPDX-License-Identifier: MIT
// A launch gives a kernel as many arguments as it has parameters.
#include <giwa/grid/launch.cuh>

__global__ void kernel(int, float) {}

giwa::status run(cudaStream_t s) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::launch(s, {}, kernel, 1);
#else
  return giwa::launch(s, {}, kernel, 1, 2.0f);
#endif
}
