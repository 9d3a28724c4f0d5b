// SPDX-License-Identifier: MIT
// What the binding of a cache to PyTorch hands to giwa: calls of an element type that is known when the program runs.
#ifndef GIWA_EXAMPLES_PYTORCH_CACHED_CALL_HPP
#define GIWA_EXAMPLES_PYTORCH_CACHED_CALL_HPP

#include "attention_call.hpp"

struct any_cache {
  any_tensor k, v;     // (sequences or pages, keys of one, kv heads, head size)
  const int* lengths;  // (sequences)
  const int* pages;    // (sequences, most), or null
  giwa::int64 pages_stride, most, sequences;

  giwa::int64 capacity() const { return pages == nullptr ? k.sizes[1] : most * k.sizes[1]; }
};

struct cached_call {
  any_cache cache;
  any_tensor q, o;  // (batch, queries, heads, head size)
  std::optional<int> window;
  std::optional<float> softcap;
  giwa::attention_scale scale;
  giwa::tensor_view<unsigned char, 1> workspace;
  cudaStream_t stream;
};

struct append_call {
  any_cache cache;
  any_tensor k, v;         // (batch, new rows, kv heads, head size)
  any_tensor q, q_to;      // (batch, new rows, heads, head size), without data if there are none
  const float *cos, *sin;  // (positions, pairs), or null for no rotation
  giwa::index<2> table_sizes, cos_strides, sin_strides;
  cudaStream_t stream;
};

// Each element type is in a separate file, so that they compile in parallel. Asynchronous; giwa makes its checks.
giwa::status attend_cached_fp16(const cached_call& call);
giwa::status attend_cached_bf16(const cached_call& call);
giwa::status attend_cached_fp32(const cached_call& call);
giwa::status append_fp16(const append_call& call);
giwa::status append_bf16(const append_call& call);
giwa::status append_fp32(const append_call& call);

#endif
