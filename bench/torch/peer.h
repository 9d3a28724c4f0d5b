/* SPDX-License-Identifier: MIT */
/* The C interface by which a report measures attention of a library that PyTorch does not have, such as FlashAttention-3. */
#ifndef GIWA_BENCH_TORCH_PEER_H
#define GIWA_BENCH_TORCH_PEER_H

#ifdef __cplusplus
extern "C" {
#endif

/* One call. q, o, dout and dq are (batch, queries, heads, head_size); k, v, dk and dv (batch, keys, kv_heads, head_size); lse, fp32,
   (batch, heads, queries); all contiguous. Scores are multiplied by head_size^-0.5. causal: query i sees the keys 0 to
   i + keys - queries. A forward call reads q, k and v, and writes o and, where the pointer is not null, lse, the natural logarithm.
   A backward call reads these five and dout, and writes dq, dk and dv. The workspace begins with zeros, and holds what the call
   before it left there. */
struct peer_call {
  long long element; /* of all tensors but lse: 0 fp16, 1 bf16 */
  long long causal, batch, queries, keys, heads, kv_heads, head_size;
  const void *q, *k, *v, *dout;
  void *o, *dq, *dk, *dv;
  float* lse;
  void* workspace;
  void* stream; /* cudaStream_t */
};

/* The bytes of workspace that a call needs, or -1 if the library does not have it. */
long long peer_forward_workspace(const struct peer_call* call);
long long peer_backward_workspace(const struct peer_call* call);

/* Enqueues kernels on the stream, which may be captured in a graph, and does not wait. 0 for success. */
long long peer_forward(const struct peer_call* call);
long long peer_backward(const struct peer_call* call);

#ifdef __cplusplus
}
#endif

#endif
