// SPDX-License-Identifier: MIT
// Kernels as a user of NVRTC writes them, so that what the headers declare is also instantiated.
#ifndef GIWA_TEST_NVRTC_KERNEL_CUH
#define GIWA_TEST_NVRTC_KERNEL_CUH

#include <giwa/giwa.cuh>

extern "C" __global__ void __launch_bounds__(256) saxpy(giwa::int64 n, float a, const float* x, float* y) {
  for (auto i : giwa::grid_stride(n)) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void __launch_bounds__(256) fill(giwa::tensor_view<float, 2> image, giwa::uint64 seed) {
  for (auto i : giwa::grid_stride(giwa::extents{image.extent(0), image.extent(1)})) image[i] = static_cast<float>(seed);
}

#endif
