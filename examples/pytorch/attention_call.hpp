// SPDX-License-Identifier: MIT
// What the binding to PyTorch hands to giwa: one call, of an element type that is known when the program runs.
#ifndef GIWA_EXAMPLES_PYTORCH_ATTENTION_CALL_HPP
#define GIWA_EXAMPLES_PYTORCH_ATTENTION_CALL_HPP

#include <giwa/host.hpp>

#include <cuda_runtime_api.h>

#include <optional>

struct any_tensor {
  void* data;
  giwa::index<4> sizes, strides;  // (batch, length, heads, head size), strides in elements
};

struct attention_call {
  any_tensor q, k, v, o;
  bool causal;
  std::optional<int> window;  // keys that a query sees up to its own, which is one of them
  std::optional<float> softcap;
  giwa::attention_scale scale;
  giwa::tensor_view<unsigned char, 1> workspace;
  cudaStream_t stream;
  float* lse = nullptr;  // (batch, heads, length), or not written
};

// Each is in a separate file, so that they compile in parallel. Asynchronous; these functions make all of giwa's checks.
giwa::status attend_fp16(const attention_call& call);
giwa::status attend_bf16(const attention_call& call);
giwa::status attend_fp32(const attention_call& call);

#endif
