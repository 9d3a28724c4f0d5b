// SPDX-License-Identifier: MIT
// giwa's attention as an operator of PyTorch: tensors as they are, PyTorch's stream and allocator, its exceptions.
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "attention_call.hpp"
#include "tensor_checks.hpp"

namespace {

using at::Tensor;

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, std::optional<int64_t> window,
                 std::optional<double> softcap, std::optional<double> scale) {
  check(q, "q", q);
  check(k, "k", q);
  check(v, "v", q);
  check_element(q);
  const c10::cuda::CUDAGuard guard(q.device());
  const Tensor o = empty_output(q, v.size(3));
  attention_call call = call_of(q, k, v, o, causal, window, softcap, scale);
  const Tensor workspace = give_workspace(call, q, giwa::workspace_bytes(sizes_of(q, k, v)));
  raise_if_failed(q.scalar_type() == at::kHalf       ? attend_fp16(call)
                  : q.scalar_type() == at::kBFloat16 ? attend_bf16(call)
                                                     : attend_fp32(call));
  return o;
}

}  // namespace

// The name is the library's, which is that of its head size.
TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, bool causal=False, int? window=None, float? softcap=None, float? "
      "scale=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, m) { m.impl("attention", &attention); }
// Refuses tangents of forward-mode differentiation, which the operator does not see.
TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, Autograd, m) {
  m.impl("attention", torch::autograd::autogradNotImplementedFallback());
}
