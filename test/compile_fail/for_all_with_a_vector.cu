// EXPECT: capture pointers, views and numbers by value, not vectors or device_arrays
// SPDX-License-Identifier: MIT
// A function that owns memory of the host cannot go to the GPU.
#include <giwa/grid/for_all.cuh>

#include <vector>

struct owner {
#if defined(GIWA_COMPILE_FAIL)
  std::vector<float> data;
#else
  float* data;
#endif
  GIWA_HOST_DEVICE void operator()(giwa::int64) const {}
};

giwa::status run(cudaStream_t s, const owner& f) { return giwa::for_all(s, 100, f); }
