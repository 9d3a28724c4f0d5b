/* SPDX-License-Identifier: MIT */
/* Attention with a C interface: forward, gradients, and to a cache, in fp16 or bf16, on a GPU or on the CPU. giwa_c.cu implements it.
 *
 * Fill a giwa_attention with zeros, then set what the call needs. Each function returns 0, or a code and a sentence in `message`. Calls on
 * a GPU are asynchronous on `stream`, of the thread's current device, and can be captured in a CUDA graph. Nothing is allocated but by the
 * CPU, and no state is kept, so any thread may call.
 */
#ifndef GIWA_C_H
#define GIWA_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GIWA_FP16 = 0, GIWA_BF16 = 1 };                         /* dtype */
enum { GIWA_GPU = 0, GIWA_CPU = 1 };                           /* place */
enum { GIWA_FORWARD = 0, GIWA_BACKWARD = 1, GIWA_CACHED = 2 }; /* pass */
enum {                                                         /* codes */
       GIWA_SUCCESS = 0,
       GIWA_INVALID_ARGUMENT = 1, /* an argument breaks a rule */
       GIWA_NOT_SUPPORTED = 2,    /* this GPU, or this library, does not do that */
       GIWA_OUT_OF_MEMORY = 3,
       GIWA_NO_DEVICE = 4,
       GIWA_NO_DRIVER = 5,
       GIWA_NO_KERNEL_IMAGE = 6, /* the library contains no code for this GPU */
       GIWA_CUDA_ERROR = 7
};

/* (batch, rows, heads, head size), with strides in elements, the last of which is 1. Packed sequences have a batch of 1. */
typedef struct {
  void* data;
  int64_t sizes[4], strides[4];
} giwa_tensor;

typedef struct {
  int32_t place, dtype;
  void* stream; /* cudaStream_t; NULL is the default stream */

  /* The heads of k and v divide those of q. o is shaped like q. Head sizes are those that giwa_c.cu was compiled for. */
  giwa_tensor q, k, v, o;
  float* lse; /* (batch, heads, rows), contiguous: log of the sum of e^score. Written forward if given, read backward */
  const float* scale; /* multiplies the scores; NULL: 1 / sqrt(head size). Read on the host */
  int32_t causal;     /* not 0: a query sees no keys after its own */
  int32_t window;     /* n > 0: a query sees keys less than n away from its own; 0: no limit */
  int32_t top_left;   /* 0: the last query's own key is the last key; else the first query's is the first */
  void* workspace; /* giwa_attention_workspace_bytes() bytes for this call alone, 256-byte aligned; NULL on the CPU */
  int64_t workspace_bytes;

  /* Packed sequences: sequence i has the rows [offsets[i], offsets[i + 1]) of q, k, v. NULL: none. GIWA_CACHED takes q_offsets. */
  const int32_t *q_offsets, *k_offsets; /* (sequences + 1) each, in the memory of the place */
  int64_t sequences, max_q;             /* their number; about the most rows of q of one, a hint */

  /* GIWA_BACKWARD: gradients of all three are written. The other arguments are those of the forward call. */
  giwa_tensor dout, dq, dk, dv;
  int32_t non_deterministic; /* not 0: faster, and the last bits of dq vary */

  /* GIWA_CACHED: k and v are (sequences, keys, kv heads, head size), or with a page table (pages, keys of one, kv heads, head size). */
  const int32_t* lengths; /* (sequences): keys of each, in the memory of the place; NULL: all, without pages only */
  const int32_t* pages;   /* (sequences, pages_per_sequence), in the memory of the place, or NULL */
  int64_t pages_per_sequence;
} giwa_attention;

/* o = softmax(scale q k^T) v, and lse. */
int giwa_attention_forward(const giwa_attention* call, char* message, size_t message_bytes);
/* dq, dk and dv, from dout and what the forward call read and wrote. */
int giwa_attention_backward(const giwa_attention* call, char* message, size_t message_bytes);
/* As forward, of a few new queries of each sequence to all keys of a cache. */
int giwa_attention_cached(const giwa_attention* call, char* message, size_t message_bytes);
/* Writes the bytes of workspace with which the call of `pass` is fastest to `bytes`. Reads sizes, and no memory of the place. */
int giwa_attention_workspace_bytes(int pass, const giwa_attention* call, int64_t* bytes, char* message,
                                   size_t message_bytes);

#ifdef __cplusplus
}
#endif

#endif
