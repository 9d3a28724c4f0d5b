// SPDX-License-Identifier: MIT
// Attention, step 10: the call. fp16.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/steps/10_library.cu -o step && ./step
//
// On Hopper its kernel is step 9 with three consumers that alternate at the tensor cores, a maximum that is raised only where
// weights would grow too large, and a tile scheduler; and with what a library needs besides: any sizes and strides, masks, NaN.
// On other GPUs and on the CPU the same call has another kernel.
#include "step.hpp"

#if defined(__CUDACC__)
#include <giwa/attention.cuh>
#endif

int main() {
  return steps::run<giwa::fp16>("step 10, the library, fp16", [](const auto& where, const auto& p) {
    const giwa::index<4> sizes{p.q.extent(0) / p.tokens, p.tokens, 1, giwa::int64{steps::head_size}};
    const auto batch = [&]<class T>(const giwa::tensor_view<T, 2>& x) {
      return giwa::tensor_view<T, 4>(x.data(), sizes);
    };
    return giwa::attention_forward<steps::head_size>(where, batch(p.q), batch(p.k), batch(p.v), batch(p.o));
  });
}
