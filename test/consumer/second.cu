// SPDX-License-Identifier: MIT
// A second translation unit with the same kernel as main.cu, so that linking them shows what is defined twice.
#include <giwa/giwa.cuh>

struct square {
  int* out;
  GIWA_HOST_DEVICE void operator()(giwa::int64 i) const { out[i] = static_cast<int>(i * i); }
};

giwa::status run_again(int* out) { return giwa::for_all(cudaStreamPerThread, 100, square{out}); }
