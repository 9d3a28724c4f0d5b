// SPDX-License-Identifier: MIT
// The kernels of the gradients, of one element type and of the head size GIWA_TORCH_HEAD_SIZE.
#ifndef GIWA_EXAMPLES_PYTORCH_TRAINING_KERNELS_CUH
#define GIWA_EXAMPLES_PYTORCH_TRAINING_KERNELS_CUH

#include <giwa/attention_backward.cuh>

#include "attention_kernels.cuh"
#include "training_call.hpp"

template <class Element>
giwa::status gradients(const training_call& call) {
  giwa::attention_backward_options options;
  options.scale = call.scale;
  options.workspace = call.workspace;
  const auto wanted = [](const any_tensor& t) {
    return t.data == nullptr ? giwa::tensor_view<Element, 4>{} : view_of<Element>(t);
  };
  return with_mask_and_score(call, [&](const auto& mask, const auto& score) {
    return giwa::attention_backward<GIWA_TORCH_HEAD_SIZE>(
        call.stream, view_of<const Element>(call.q), view_of<const Element>(call.k), view_of<const Element>(call.v),
        view_of<const Element>(call.o), lse_of(call), view_of<const Element>(call.dout), wanted(call.dq),
        wanted(call.dk), wanted(call.dv), mask, score, options);
  });
}

#endif
