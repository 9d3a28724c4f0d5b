// EXPECT: giwa::for_all: a lambda for the GPU needs a mark
// SPDX-License-Identifier: MIT
// nvcc compiles a lambda without a mark for the host.
#include <giwa/grid/for_all.cuh>

#if defined(GIWA_COMPILE_FAIL)
giwa::status run(cudaStream_t s, float* p) {
  return giwa::for_all(s, 100, [=](giwa::int64 i) { p[i] = 1; });
}
#else
struct one {
  float* p;
  GIWA_DEVICE void operator()(giwa::int64 i) const { p[i] = 1; }
};
giwa::status run(cudaStream_t s, float* p) { return giwa::for_all(s, 100, one{p}); }
#endif
