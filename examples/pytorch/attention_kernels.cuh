// SPDX-License-Identifier: MIT
// The kernels of one element type and of the head size GIWA_TORCH_HEAD_SIZE: three masks, with a softcap and without.
#ifndef GIWA_EXAMPLES_PYTORCH_ATTENTION_KERNELS_CUH
#define GIWA_EXAMPLES_PYTORCH_ATTENTION_KERNELS_CUH

#include <giwa/attention.cuh>

#include "attention_call.hpp"

template <class Element>
giwa::status attend(const attention_call& call) {
  const auto input = [](const any_tensor& t) {
    return giwa::tensor_view<const Element, 4>{static_cast<const Element*>(t.data), t.sizes, t.strides};
  };
  const giwa::tensor_view<Element, 4> o{static_cast<Element*>(call.o.data), call.o.sizes, call.o.strides};
  giwa::attention_options options;
  options.scale = call.scale;
  options.workspace = call.workspace;
  const auto run = [&](const auto& mask, const auto& score) {
    return giwa::attention_forward<GIWA_TORCH_HEAD_SIZE>(call.stream, input(call.q), input(call.k), input(call.v), o,
                                                         mask, score, options);
  };
  const auto masked = [&](const auto& mask) {
    return call.softcap ? run(mask, giwa::softcap{*call.softcap}) : run(mask, giwa::plain_score{});
  };
  // The last query sees the last key: queries are the newest tokens of a cache, whatever their number.
  if (call.window) return masked(giwa::sliding_window{*call.window, giwa::alignment::bottom_right});
  return call.causal ? masked(giwa::causal::bottom_right) : masked(giwa::full{});
}

#endif
