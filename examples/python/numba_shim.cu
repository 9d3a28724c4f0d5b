// SPDX-License-Identifier: MIT
// giwa's random numbers and softmax state for kernels in Python: device functions as Numba calls them.
//
//   nvcc -std=c++20 -rdc=true -ptx -arch=native -Iinclude examples/python/numba_shim.cu -o numba_shim.ptx
//
// Numba's convention: the function answers 0, and its result goes to the address that it is passed first; a pair is two numbers
// there, and two arguments on the way in. numba_kernel.py declares these functions and links the PTX.
#include <giwa/numeric/philox.hpp>
#include <giwa/softmax/state.hpp>

using state = giwa::softmax_state<float>;

struct pair {
  float max, sum;
};

// Element i of a stream of random numbers in [0, 1).
extern "C" __device__ int giwa_uniform(float* out, unsigned long long seed, unsigned long long stream,
                                       unsigned long long i) {
  *out = giwa::philox{seed, stream}.uniform<float>(i);
  return 0;
}

// The state (max, sum) of one element, and of the elements of two states; (-inf, 0) is that of nothing.
extern "C" __device__ int giwa_softmax_of(pair* out, float x) {
  const state s = state::of(x);
  *out = {s.max, s.sum};
  return 0;
}
extern "C" __device__ int giwa_softmax_merge(pair* out, float max_a, float sum_a, float max_b, float sum_b) {
  const state s = state::merge({max_a, sum_a}, {max_b, sum_b});
  *out = {s.max, s.sum};
  return 0;
}

// The weight of x in the row of which the state is.
extern "C" __device__ int giwa_softmax_weight(float* out, float max, float sum, float x) {
  const state s{max, sum};
  *out = giwa::exponential{}(x - s.reference()) * s.normalizer();
  return 0;
}
