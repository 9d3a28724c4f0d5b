// EXPECT: giwa::for_all: pass an integer count, extents{...} or elementwise{...} before f.
// SPDX-License-Identifier: MIT
// A view alone does not say whether f gets indices or elements.
#include <giwa/grid/elementwise.cuh>

struct body {
  GIWA_DEVICE float operator()() const { return 1; }
};
#if defined(GIWA_COMPILE_FAIL)
giwa::status run(cudaStream_t s, giwa::tensor_view<float, 1> v) { return giwa::for_all(s, v, body{}); }
#else
giwa::status run(cudaStream_t s, giwa::tensor_view<float, 1> v) {
  return giwa::for_all(s, giwa::elementwise{v}, body{});
}
#endif
