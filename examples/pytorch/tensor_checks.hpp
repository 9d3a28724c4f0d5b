// SPDX-License-Identifier: MIT
// What the bindings to PyTorch check of tensors, how they hand them to giwa, and giwa's errors as exceptions of PyTorch.
#ifndef GIWA_EXAMPLES_PYTORCH_TENSOR_CHECKS_HPP
#define GIWA_EXAMPLES_PYTORCH_TENSOR_CHECKS_HPP

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include <giwa/base/throw.hpp>
#include <giwa/host.hpp>

#include <algorithm>
#include <limits>
#include <string>

#include "attention_call.hpp"

inline void raise_if_failed(const giwa::status& s) {
  if (s.ok()) return;
  const std::string text = giwa::format_status(s).c_str();
  switch (s.code) {
    case giwa::status_code::invalid_argument: TORCH_CHECK_VALUE(false, text);
    case giwa::status_code::not_supported:
    case giwa::status_code::no_kernel_image: TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case giwa::status_code::out_of_memory: TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    default: TORCH_CHECK(false, text);
  }
}

// Of a tensor with the element type and on the GPU of `first`, which is q of attention and k of an append.
inline void check(const at::Tensor& t, const char* name, const at::Tensor& first, const char* name_of_first = "q",
                  const char* sizes = "(batch, heads, length, head size)") {
  TORCH_CHECK_VALUE(t.is_cuda() && t.layout() == at::kStrided, "giwa_attention: ", name,
                    " must be a strided tensor in GPU memory; it is on ", t.device());
  TORCH_CHECK_VALUE(t.device() == first.device(), "giwa_attention: ", name, " is on ", t.device(), ", ", name_of_first,
                    " on ", first.device());
  // std::to_string, because a number written to a stream by the macro crashes in an extension that links libstdc++ statically.
  TORCH_CHECK_VALUE(t.dim() == 4, "giwa_attention: ", name, " must have four dimensions, ", sizes, "; it has ",
                    std::to_string(t.dim()));
  TORCH_CHECK_VALUE(t.scalar_type() == first.scalar_type(), "giwa_attention: ", name, " has elements of type ",
                    t.scalar_type(), ", ", name_of_first, " of type ", first.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(
      !(at::GradMode::is_enabled() && t.requires_grad()), "giwa_attention: ", name,
      " requires a gradient, and there is no backward pass; call it under torch.no_grad() or inference_mode()");
}
inline void check_element(const at::Tensor& t) {
  const at::ScalarType type = t.scalar_type();
  TORCH_CHECK_VALUE(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                    "giwa_attention: the element type must be float16, bfloat16 or float32; it is ", type);
}

// As it is.
inline any_tensor in_order(const at::Tensor& t) {
  return {
      t.data_ptr(), {t.size(0), t.size(1), t.size(2), t.size(3)}, {t.stride(0), t.stride(1), t.stride(2), t.stride(3)}};
}
// PyTorch's (batch, heads, length, head size) as giwa names them, (batch, length, heads, head size).
inline any_tensor as_giwa(const at::Tensor& t) { return in_order(t.transpose(1, 2)); }

// A tensor (batch, heads, length, columns) with the rows of q, in the memory order (batch, length, heads, columns) of PyTorch's
// flash attention: transpose(1, 2) of it is contiguous.
inline at::Tensor empty_output(const at::Tensor& q, int64_t columns) {
  return at::empty({q.size(0), q.size(2), q.size(1), columns}, q.options()).transpose(1, 2);
}
inline giwa::attention_problem sizes_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return {.batch = q.size(0),
          .seq_q = q.size(2),
          .seq_k = k.size(2),
          .heads = q.size(1),
          .kv_heads = k.size(1),
          .head_size = q.size(3),
          .head_size_v = v.size(3),
          .element_bytes = static_cast<int64_t>(q.element_size())};
}
// A call on PyTorch's current stream, without a workspace.
inline attention_call call_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& o,
                              bool causal, std::optional<int64_t> window, std::optional<double> softcap,
                              std::optional<double> scale) {
  attention_call call{as_giwa(q), as_giwa(k), as_giwa(v), as_giwa(o), causal, {}, {}, {}, {}, nullptr};
  constexpr int64_t least = std::numeric_limits<int>::min(), most = std::numeric_limits<int>::max();
  if (window) call.window = static_cast<int>(std::clamp(*window, least, most));  // no sequence is as long
  if (softcap) call.softcap = static_cast<float>(*softcap);
  if (scale) call.scale = *scale;
  call.stream = c10::cuda::getCurrentCUDAStream(q.device().index());
  return call;
}
// The workspace of a call: freed where the tensor that this returns is, to PyTorch's allocator, which gives it to later work of the
// same stream only. 0 bytes for sizes that giwa refuses; the call then says what is wrong.
inline at::Tensor give_workspace(attention_call& call, const at::Tensor& q, int64_t bytes) {
  const at::Tensor workspace = at::empty({bytes}, q.options().dtype(at::kByte));
  if (bytes > 0) call.workspace = {workspace.data_ptr<unsigned char>(), {bytes}};
  return workspace;
}

#endif
