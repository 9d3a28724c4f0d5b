// EXPECT: giwa::for_all: the address of a host function is not valid on the GPU: pass a functor or a lambda.
// SPDX-License-Identifier: MIT
// The address of a function of the host is no function for a kernel over whole arrays either.
#include <giwa/grid/elementwise.cuh>

GIWA_HOST_DEVICE inline float twice(float x) { return 2 * x; }

struct doubled {
  GIWA_HOST_DEVICE float operator()(float x) const { return twice(x); }
};

giwa::status run(cudaStream_t s, giwa::tensor_view<float, 1> x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::for_all(s, giwa::elementwise{x, x}, &twice);
#else
  return giwa::for_all(s, giwa::elementwise{x, x}, doubled{});
#endif
}
