// EXPECT: giwa::for_all: the address of a host function is not valid on the GPU: pass a functor or a lambda.
// SPDX-License-Identifier: MIT
// A function itself, which decays to a pointer, is no function for a kernel.
#include <giwa/grid/for_all.cuh>

GIWA_HOST_DEVICE inline void body(giwa::int64) {}

struct functor {
  GIWA_HOST_DEVICE void operator()(giwa::int64 i) const { body(i); }
};

giwa::status run(cudaStream_t s) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::for_all(s, 100, body);
#else
  return giwa::for_all(s, 100, functor{});
#endif
}
