// SPDX-License-Identifier: MIT
// What the bindings to PyTorch check of tensors, how they hand them to giwa, and giwa's errors as exceptions of PyTorch.
#ifndef GIWA_EXAMPLES_PYTORCH_TENSOR_CHECKS_HPP
#define GIWA_EXAMPLES_PYTORCH_TENSOR_CHECKS_HPP

#include <ATen/ATen.h>

#include <giwa/base/throw.hpp>
#include <giwa/host.hpp>

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

#endif
