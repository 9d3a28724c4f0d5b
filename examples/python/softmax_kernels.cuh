// SPDX-License-Identifier: MIT
// The kernels of cupy_kernel.py, which compiles this file when it runs: random numbers, and the softmax of rows in one pass.
#ifndef GIWA_EXAMPLES_PYTHON_SOFTMAX_KERNELS_CUH
#define GIWA_EXAMPLES_PYTHON_SOFTMAX_KERNELS_CUH

#include <giwa/grid.cuh>
#include <giwa/softmax.cuh>

// x[i] is the i-th number of the seed, from -8 to 8, whatever the launch.
extern "C" __global__ void __launch_bounds__(256) fill(float* x, giwa::int64 n, giwa::uint64 seed) {
  const giwa::philox random{seed};
  for (auto i : giwa::grid_stride(n)) x[i] = 16 * random.uniform<float>(static_cast<giwa::uint64>(i)) - 8;
}

// A block for each row of x and y, (rows, columns).
extern "C" __global__ void __launch_bounds__(256)
    row_softmax(const float* x, float* y, giwa::int64 rows, giwa::int64 columns) {
  using state = giwa::softmax_state<float>;
  const giwa::tensor_view<const float, 2> in{x, {rows, columns}};
  const giwa::tensor_view<float, 2> out{y, {rows, columns}};
  __shared__ float max_of[8], sum_of[8];  // of each warp
  for (giwa::int64 row = blockIdx.x; row < rows; row += gridDim.x) {
    state s;  // of the elements that this thread sees, then of all: the states of parts merge
    for (auto column : giwa::block_stride(columns)) s = state::merge(s, state::of(in(row, column)));
    for (int distance = 16; distance > 0; distance /= 2)
      s = state::merge(s, {__shfl_xor_sync(~0u, s.max, distance), __shfl_xor_sync(~0u, s.sum, distance)});
    if (threadIdx.x % 32 == 0) {
      max_of[threadIdx.x / 32] = s.max;
      sum_of[threadIdx.x / 32] = s.sum;
    }
    __syncthreads();
    s = {};
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) s = state::merge(s, {max_of[warp], sum_of[warp]});
    __syncthreads();  // they are read before the next row writes them
    const float factor = s.normalizer();
    for (auto column : giwa::block_stride(columns))
      out(row, column) = giwa::exponential{}(in(row, column) - s.reference()) * factor;
  }
}

#endif
