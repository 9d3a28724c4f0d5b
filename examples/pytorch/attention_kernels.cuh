// SPDX-License-Identifier: MIT
// The kernels of one element type and of the head size GIWA_TORCH_HEAD_SIZE: three masks, with a softcap and without.
#ifndef GIWA_EXAMPLES_PYTORCH_ATTENTION_KERNELS_CUH
#define GIWA_EXAMPLES_PYTORCH_ATTENTION_KERNELS_CUH

#include <giwa/attention.cuh>

#include "attention_call.hpp"

template <class Element>
giwa::tensor_view<Element, 4> view_of(const any_tensor& t) {
  return {static_cast<Element*>(t.data), t.sizes, t.strides};
}
inline giwa::tensor_view<float, 3> lse_of(const attention_call& call) {
  if (call.lse == nullptr) return {};
  return {call.lse, {call.q.sizes[0], call.q.sizes[2], call.q.sizes[1]}};
}

// run(mask, score modifier) with those of a call.
template <class Run>
giwa::status with_mask_and_score(const attention_call& call, const Run& run) {
  const auto masked = [&](const auto& mask) {
    return call.softcap ? run(mask, giwa::softcap{*call.softcap}) : run(mask, giwa::plain_score{});
  };
  // The last query sees the last key: queries are the newest tokens of a cache, whatever their number.
  if (call.window) return masked(giwa::sliding_window{*call.window, giwa::alignment::bottom_right});
  return call.causal ? masked(giwa::causal::bottom_right) : masked(giwa::full{});
}

template <class Element>
giwa::status attend(const attention_call& call) {
  giwa::attention_options options;
  options.scale = call.scale;
  options.workspace = call.workspace;
  options.lse = lse_of(call);
  return with_mask_and_score(call, [&](const auto& mask, const auto& score) {
    return giwa::attention_forward<GIWA_TORCH_HEAD_SIZE>(call.stream, view_of<const Element>(call.q),
                                                         view_of<const Element>(call.k), view_of<const Element>(call.v),
                                                         view_of<Element>(call.o), mask, score, options);
  });
}

#endif
