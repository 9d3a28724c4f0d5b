// SPDX-License-Identifier: MIT
// giwa's attention with its gradients as operators of PyTorch; giwa_training.py makes one function of them.
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "tensor_checks.hpp"
#include "training_call.hpp"

namespace {

using at::Tensor;

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  check(q, "q", q);
  check(k, "k", q);
  check(v, "v", q);
  check_element(q);
}

// o, and lse (batch, heads, length), which the gradients need.
std::tuple<Tensor, Tensor> attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                              std::optional<int64_t> window, std::optional<double> softcap,
                                              std::optional<double> scale) {
  check_inputs(q, k, v);
  const c10::cuda::CUDAGuard guard(q.device());
  const Tensor o = empty_output(q, v.size(3));
  const Tensor lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  attention_call call = call_of(q, k, v, o, causal, window, softcap, scale);
  call.lse = lse.data_ptr<float>();
  const Tensor workspace = give_workspace(call, q, giwa::workspace_bytes(sizes_of(q, k, v)));
  raise_if_failed(q.scalar_type() == at::kHalf       ? attend_fp16(call)
                  : q.scalar_type() == at::kBFloat16 ? attend_bf16(call)
                                                     : attend_fp32(call));
  return {o, lse};
}

// dq, dk and dv; undefined where they are not wanted.
std::tuple<Tensor, Tensor, Tensor> attention_gradients(const Tensor& q, const Tensor& k, const Tensor& v,
                                                       const Tensor& o, const Tensor& lse, const Tensor& dout,
                                                       std::array<bool, 3> wanted, bool causal,
                                                       std::optional<int64_t> window, std::optional<double> softcap,
                                                       std::optional<double> scale) {
  check_inputs(q, k, v);
  check(o, "o", q);
  check(dout, "the gradient of o", q);
  TORCH_CHECK_VALUE(lse.is_contiguous() && lse.scalar_type() == at::kFloat && lse.device() == q.device() &&
                        lse.numel() == q.size(0) * q.size(1) * q.size(2),
                    "giwa_attention: lse must be what attention_with_lse returned");
  const c10::cuda::CUDAGuard guard(q.device());
  training_call call{call_of(q, k, v, o, causal, window, softcap, scale), as_giwa(dout), {}, {}, {}};
  call.lse = lse.data_ptr<float>();
  std::array<Tensor, 3> gradients;
  const std::array<const Tensor*, 3> inputs{&q, &k, &v};
  const std::array<any_tensor*, 3> outputs{&call.dq, &call.dk, &call.dv};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!wanted[i]) continue;
    gradients[i] = empty_output(*inputs[i], inputs[i]->size(3));
    *outputs[i] = as_giwa(gradients[i]);
  }
  const Tensor workspace = give_workspace(call, q, giwa::backward_workspace_bytes(sizes_of(q, k, v)));
  raise_if_failed(q.scalar_type() == at::kHalf       ? gradients_fp16(call)
                  : q.scalar_type() == at::kBFloat16 ? gradients_bf16(call)
                                                     : gradients_fp32(call));
  return {gradients[0], gradients[1], gradients[2]};
}

}  // namespace

// The name is the library's, which is that of its head size.
TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def(
      "attention_with_lse(Tensor q, Tensor k, Tensor v, bool causal=False, int? window=None, float? softcap=None, "
      "float? "
      "scale=None) -> (Tensor, Tensor)");
  m.def(
      "attention_gradients(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor dout, bool[3] wanted, bool "
      "causal=False, int? window=None, float? softcap=None, float? scale=None) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, m) {
  m.impl("attention_with_lse", &attention_with_lse);
  m.impl("attention_gradients", &attention_gradients);
}
