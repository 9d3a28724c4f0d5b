// SPDX-License-Identifier: MIT
// giwa's attention as an operator of PyTorch: tensors as they are, PyTorch's stream and allocator, its exceptions.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

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
  // The memory order (batch, length, heads, head size) of PyTorch's flash attention: o.transpose(1, 2) is contiguous.
  const Tensor o = at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);

  attention_call call{as_giwa(q), as_giwa(k), as_giwa(v), as_giwa(o), causal, {}, {}, {}, {}, nullptr};
  constexpr int64_t least = std::numeric_limits<int>::min(), most = std::numeric_limits<int>::max();
  if (window) call.window = static_cast<int>(std::clamp(*window, least, most));  // no sequence is as long
  if (softcap) call.softcap = static_cast<float>(*softcap);
  if (scale) call.scale = *scale;
  call.stream = c10::cuda::getCurrentCUDAStream(q.device().index());

  // Freed when this returns: to PyTorch's allocator, which gives it to later work of the same stream only.
  const giwa::attention_problem sizes{.batch = q.size(0),
                                      .seq_q = q.size(2),
                                      .seq_k = k.size(2),
                                      .heads = q.size(1),
                                      .kv_heads = k.size(1),
                                      .head_size = q.size(3),
                                      .head_size_v = v.size(3),
                                      .element_bytes = static_cast<int64_t>(q.element_size())};
  Tensor workspace;
  if (giwa::supports(sizes, 0).ok()) {  // if not, giwa says below what is wrong
    workspace = at::empty({giwa::workspace_bytes(sizes)}, q.options().dtype(at::kByte));
    call.workspace = {workspace.data_ptr<unsigned char>(), {workspace.numel()}};
  }
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
