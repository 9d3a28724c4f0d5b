// SPDX-License-Identifier: MIT
// The number of multiprocessors that launches of a thread find, for the tests of grids of other GPUs. The program is linked with
// --wrap=cudaDeviceGetAttribute.
#ifndef GIWA_TEST_GPU_ATTENTION_FEWER_PROCESSORS_CUH
#define GIWA_TEST_GPU_ATTENTION_FEWER_PROCESSORS_CUH

#include <cuda_runtime.h>

namespace giwa_test::attention {

inline thread_local int processors_of_test = 0;  // 0: those that the GPU has

}  // namespace giwa_test::attention

// The linker puts these in the place of each other. Weak: several files of a program may include this.
extern "C" cudaError_t __real_cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device);
extern "C" __attribute__((weak)) cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr which,
                                                                           int device) {
  const cudaError_t error = __real_cudaDeviceGetAttribute(value, which, device);
  const int processors = giwa_test::attention::processors_of_test;
  if (which == cudaDevAttrMultiProcessorCount && processors > 0) *value = processors;
  return error;
}

#endif
