// EXPECT: giwa/attention.cuh needs nvcc: compile this file as CUDA (.cu), or include <giwa/host.hpp> for the CPU alone
// SPDX-License-Identifier: MIT
// A host compiler cannot compile kernels.
#if defined(GIWA_COMPILE_FAIL)
#include <giwa/attention.cuh>
#else
#include <giwa/host.hpp>
#endif

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
  return giwa::attention_forward<64>(giwa::host, x, x, x, x);
}
