// SPDX-License-Identifier: MIT
// The calls of attention whose compile time has a budget, as users write them: CALL is 0 (forward), 1 (gradients) or 2 (decoding).
#if CALL == 0
#include <giwa/attention.cuh>
#elif CALL == 1
#include <giwa/attention_backward.cuh>
#else
#include <giwa/cache.cuh>
#endif

using tensor = giwa::tensor_view<giwa::fp16, 4>;
using bytes = giwa::tensor_view<unsigned char, 1>;

#if CALL == 0
giwa::status attend(cudaStream_t stream, tensor q, tensor k, tensor v, tensor o) {
  return giwa::attention_forward<128>(stream, q, k, v, o, giwa::causal::bottom_right);
}
#elif CALL == 1
giwa::status gradients(cudaStream_t stream, tensor q, tensor k, tensor v, tensor o, tensor dout, tensor dq, tensor dk,
                       tensor dv, giwa::tensor_view<float, 3> lse, bytes workspace) {
  return giwa::attention_backward<128>(stream, q, k, v, o, dout, dq, dk, dv, giwa::causal{},
                                       {.lse = lse, .workspace = workspace});
}
#else
giwa::status decode(cudaStream_t stream, const giwa::kv_cache<giwa::fp16>& cache, tensor q, tensor o, bytes workspace) {
  return giwa::attention_cached<128>(stream, cache, q, o, giwa::causal::bottom_right, {.workspace = workspace});
}
#endif
