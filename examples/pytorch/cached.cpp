// SPDX-License-Identifier: MIT
// giwa's cache of keys and values as operators of PyTorch: attention to it, and rows appended to it.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <giwa/attention/cached/workspace.hpp>

#include <algorithm>
#include <limits>

#include "cached_call.hpp"
#include "tensor_checks.hpp"

namespace {

using at::Tensor;
using optional_tensor = std::optional<Tensor>;

void check_numbers(const Tensor& t, const char* name, int64_t dimensions, const char* sizes, const Tensor& first) {
  TORCH_CHECK_VALUE(t.device() == first.device() && t.scalar_type() == at::kInt, "giwa_attention: ", name,
                    " must be of int32 and on ", first.device(), "; it is of ", t.scalar_type(), " and on ",
                    t.device());
  TORCH_CHECK_VALUE(t.dim() == dimensions && t.size(0) == first.size(0) && (t.numel() == 0 || t.stride(-1) == 1),
                    "giwa_attention: ", name, " must be ", sizes, ", of ", std::to_string(first.size(0)),
                    " sequences, and its last dimension contiguous");
}

// `first` is q or the new k: (batch, …).
any_cache cache_of(const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths, const optional_tensor& pages,
                   const Tensor& first, const char* name_of_first) {
  constexpr auto sizes = "(pages, keys of a page, kv heads, head size) or (batch, keys, kv heads, head size)";
  check(k_cache, "k_cache", first, name_of_first, sizes);
  check(v_cache, "v_cache", first, name_of_first, sizes);
  check_numbers(lengths, "lengths", 1, "(batch)", first);
  any_cache cache{in_order(k_cache), in_order(v_cache), lengths.data_ptr<int>(), nullptr, 0, 0, first.size(0)};
  if (pages) {
    check_numbers(*pages, "pages", 2, "(batch, pages of a sequence)", first);
    cache.pages = pages->data_ptr<int>();
    cache.pages_stride = pages->stride(0);
    cache.most = pages->size(1);
  }
  return cache;
}

Tensor attention_cached(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths,
                        const optional_tensor& pages, std::optional<int64_t> window, std::optional<double> softcap,
                        std::optional<double> scale) {
  check(q, "q", q);
  check_element(q);
  const any_cache cache = cache_of(k_cache, v_cache, lengths, pages, q, "q");
  const c10::cuda::CUDAGuard guard(q.device());
  const Tensor o = at::empty({q.size(0), q.size(2), q.size(1), v_cache.size(3)}, q.options()).transpose(1, 2);

  cached_call call{cache, as_giwa(q), as_giwa(o), {}, {}, {}, {}, nullptr};
  constexpr int64_t least = std::numeric_limits<int>::min(), most = std::numeric_limits<int>::max();
  if (window) call.window = static_cast<int>(std::clamp(*window, least, most));  // no sequence is as long
  if (softcap) call.softcap = static_cast<float>(*softcap);
  if (scale) call.scale = *scale;
  call.stream = c10::cuda::getCurrentCUDAStream(q.device().index());

  // Freed when this returns: to PyTorch's allocator, which gives it to later work of the same stream only.
  const giwa::int64 bytes = giwa::cached_workspace_bytes({.sequences = q.size(0),
                                                          .queries = q.size(2),
                                                          .keys = cache.capacity(),
                                                          .heads = q.size(1),
                                                          .kv_heads = k_cache.size(2),
                                                          .head_size = q.size(3),
                                                          .head_size_v = v_cache.size(3),
                                                          .element_bytes = static_cast<int64_t>(q.element_size()),
                                                          .cache_bytes = static_cast<int64_t>(q.element_size()),
                                                          .page_size = pages ? k_cache.size(1) : 0},
                                                         at::cuda::getCurrentDeviceProperties()->multiProcessorCount);
  const Tensor workspace = at::empty({bytes}, q.options().dtype(at::kByte));
  call.workspace = {workspace.data_ptr<unsigned char>(), {workspace.numel()}};
  raise_if_failed(q.scalar_type() == at::kHalf       ? attend_cached_fp16(call)
                  : q.scalar_type() == at::kBFloat16 ? attend_cached_bf16(call)
                                                     : attend_cached_fp32(call));
  return o;
}

// Returns the rotated q; an empty tensor if there is no q.
Tensor append_to_cache(const Tensor& k, const Tensor& v, Tensor k_cache, Tensor v_cache, const Tensor& lengths,
                       const optional_tensor& pages, const optional_tensor& q, const optional_tensor& cos,
                       const optional_tensor& sin) {
  check(k, "k", k);
  check_element(k);
  check(v, "v", k, "k");
  TORCH_CHECK_VALUE(cos.has_value() == sin.has_value(), "giwa_attention: cos and sin must be given together");
  append_call call{cache_of(k_cache, v_cache, lengths, pages, k, "k"),
                   as_giwa(k),
                   as_giwa(v),
                   {},
                   {},
                   nullptr,
                   nullptr,
                   {},
                   {},
                   {},
                   nullptr};
  const c10::cuda::CUDAGuard guard(k.device());
  Tensor rotated = at::empty({0}, k.options());
  if (q) {
    check(*q, "q", k, "k");
    rotated = at::empty({q->size(0), q->size(2), q->size(1), q->size(3)}, q->options()).transpose(1, 2);
    call.q = as_giwa(*q), call.q_to = as_giwa(rotated);
  }
  if (cos) {
    for (const Tensor& t : {*cos, *sin})
      TORCH_CHECK_VALUE(
          t.device() == k.device() && t.scalar_type() == at::kFloat && t.dim() == 2 && t.sizes() == cos->sizes(),
          "giwa_attention: cos and sin must be (positions, pairs) of float32 on ", k.device());
    call.cos = cos->data_ptr<float>(), call.sin = sin->data_ptr<float>();
    call.table_sizes = {cos->size(0), cos->size(1)};
    call.cos_strides = {cos->stride(0), cos->stride(1)}, call.sin_strides = {sin->stride(0), sin->stride(1)};
  }
  call.stream = c10::cuda::getCurrentCUDAStream(k.device().index());
  raise_if_failed(k.scalar_type() == at::kHalf       ? append_fp16(call)
                  : k.scalar_type() == at::kBFloat16 ? append_bf16(call)
                                                     : append_fp32(call));
  return rotated;
}

}  // namespace

// The name is the library's, which is that of its head size.
TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def(
      "attention_cached(Tensor q, Tensor k_cache, Tensor v_cache, Tensor lengths, Tensor? pages=None, int? "
      "window=None, float? softcap=None, float? scale=None) -> Tensor");
  m.def(
      "append_to_cache(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor lengths, Tensor? pages=None, "
      "Tensor? q=None, Tensor? cos=None, Tensor? sin=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, m) {
  m.impl("attention_cached", &attention_cached);
  m.impl("append_to_cache", &append_to_cache);
}
// Refuses tangents of forward-mode differentiation, which the operators do not see.
TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, Autograd, m) {
  m.impl("attention_cached", torch::autograd::autogradNotImplementedFallback());
  m.impl("append_to_cache", torch::autograd::autogradNotImplementedFallback());
}
