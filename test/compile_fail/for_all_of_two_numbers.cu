// EXPECT: giwa::for_all: f is called as f(int64) for a count and as f(index<rank>) for extents
// SPDX-License-Identifier: MIT
// Over extents f gets one index, not several numbers.
#include <giwa/grid/for_all.cuh>

struct body {
#if defined(GIWA_COMPILE_FAIL)
  GIWA_DEVICE void operator()(giwa::int64, giwa::int64) const {}
#else
  GIWA_DEVICE void operator()(giwa::index<2>) const {}
#endif
};
giwa::status run(cudaStream_t s) { return giwa::for_all(s, giwa::extents{8, 8}, body{}); }
