// SPDX-License-Identifier: MIT
// Attention to a cache, and rows appended to it, of one element type and of the head size GIWA_TORCH_HEAD_SIZE.
#ifndef GIWA_EXAMPLES_PYTORCH_CACHED_KERNELS_CUH
#define GIWA_EXAMPLES_PYTORCH_CACHED_KERNELS_CUH

#include <giwa/cache.cuh>

#include "cached_call.hpp"

template <class Element>
giwa::tensor_view<Element, 4> view_of(const any_tensor& t) {
  return {static_cast<Element*>(t.data), t.sizes, t.strides};
}

template <class Element>
giwa::kv_cache<Element> cache_of(const any_cache& c) {
  giwa::kv_cache<Element> cache{.k = view_of<Element>(c.k), .v = view_of<Element>(c.v)};
  cache.lengths = c.lengths;
  if (c.pages == nullptr) return cache;
  cache.pages.indices = c.pages;
  cache.pages.stride = c.pages_stride;
  cache.pages.most = c.most;
  cache.sequences = c.sequences;
  return cache;
}

template <class Element>
giwa::status attend_cached(const cached_call& call) {
  const giwa::kv_cache<const Element> cache = cache_of<Element>(call.cache);
  giwa::cached_options options;
  options.scale = call.scale;
  options.workspace = call.workspace;
  const auto run = [&](const auto& mask, const auto& score) {
    return giwa::attention_cached<GIWA_TORCH_HEAD_SIZE>(call.stream, cache, view_of<const Element>(call.q),
                                                        view_of<Element>(call.o), mask, score, options);
  };
  const auto masked = [&](const auto& mask) {
    return call.softcap ? run(mask, giwa::softcap{*call.softcap}) : run(mask, giwa::plain_score{});
  };
  if (call.window) return masked(giwa::sliding_window{*call.window, giwa::alignment::bottom_right});
  return masked(giwa::causal::bottom_right);
}

template <class Element>
giwa::status append(const append_call& call) {
  const giwa::kv_cache<Element> cache = cache_of<Element>(call.cache);
  giwa::append_options<Element> options;
  if (call.q.data != nullptr) {
    options.q = view_of<Element>(call.q);
    options.q_to = view_of<Element>(call.q_to);
  }
  const auto run = [&](const auto& rotary) {
    return giwa::append_to_cache(call.stream, cache, view_of<const Element>(call.k), view_of<const Element>(call.v),
                                 rotary, options);
  };
  if (call.cos == nullptr) return run(giwa::no_rotary{});
  const giwa::tensor_view<const float, 2> cos(call.cos, call.table_sizes, call.cos_strides),
      sin(call.sin, call.table_sizes, call.sin_strides);
  return run(giwa::rotary_table(cos, sin));
}

#endif
