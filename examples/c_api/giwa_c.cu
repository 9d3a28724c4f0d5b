// SPDX-License-Identifier: MIT
// The C interface of giwa_c.h: the first line compiles it for Hopper and the CPU, the second for the CPU alone.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude -shared -Xcompiler -fPIC,-fvisibility=hidden
//       examples/c_api/giwa_c.cu -o libgiwa_c.so
//   g++ -x c++ -std=c++20 -O3 -Iinclude -I/usr/local/cuda/include -shared -fPIC -fvisibility=hidden
//       examples/c_api/giwa_c.cu -o libgiwa_c.so
#include "giwa_c.h"

#if defined(__CUDACC__)
#include <giwa/attention.cuh>
#include <giwa/attention_backward.cuh>
#include <giwa/cache.cuh>
#endif
#include <giwa/host.hpp>

#include <climits>
#include <cstdio>
#include <exception>

#if !defined(GIWA_C_HEAD_SIZES)
#define GIWA_C_HEAD_SIZES 64, 128  // any from 1 to 512; each is compiled with each element type, mask and pass
#endif

namespace {

using giwa::int64;
using giwa::status;

// A view of rank 4, or of rank 3 for packed sequences.
template <int Rank, class T>
giwa::tensor_view<T, Rank> view(const giwa_tensor& t) {
  giwa::index<Rank> sizes{}, strides{};
  for (int d = 0; d < Rank; ++d) sizes[d] = t.sizes[4 - Rank + d], strides[d] = t.strides[4 - Rank + d];
  return {static_cast<T*>(t.data), sizes, strides};
}
template <class T>
giwa::tensor_view<T, 3> rows_of_heads(const giwa_attention& c, T* data) {
  if (data == nullptr) return {};
  return {data, {c.q.sizes[0], c.q.sizes[2], c.q.sizes[1]}};
}
template <class T>
giwa::kv_cache<const T> cache_of(const giwa_attention& c) {
  giwa::kv_cache<const T> cache{view<4, const T>(c.k), view<4, const T>(c.v), {}, c.lengths};
  if (c.pages == nullptr) return cache;
  cache.pages.indices = c.pages;
  cache.pages.stride = cache.pages.most = c.pages_per_sequence;
  cache.sequences = c.q_offsets != nullptr ? c.sequences : c.q.sizes[0];
  return cache;
}

// Options of each call: members with the same names.
template <class Options>
Options options_of(const giwa_attention& c) {
  Options options;
  if (c.scale != nullptr) options.scale = *c.scale;
  options.lse = rows_of_heads(c, c.lse);
  options.align = c.top_left != 0 ? giwa::alignment::top_left : giwa::alignment::bottom_right;
  if (c.workspace != nullptr) options.workspace = {static_cast<unsigned char*>(c.workspace), {c.workspace_bytes}};
  options.sequences.q_offsets = c.q_offsets;
  if (c.q_offsets != nullptr) options.sequences.count = c.sequences, options.sequences.max_q = c.max_q;
  if constexpr (!requires { options.prior; }) options.sequences.k_offsets = c.k_offsets;
  if constexpr (requires { options.any_order; }) options.any_order = c.non_deterministic != 0;
  return options;
}

// What giwa's types do not let a C++ program do.
status check(int pass, const giwa_attention& c) {
  if (pass < GIWA_FORWARD || pass > GIWA_CACHED) return status::invalid("pass", "must be one of the three");
  const giwa_tensor* const tensors[] = {&c.q, &c.o, &c.k, &c.v, &c.dout, &c.dq, &c.dk, &c.dv};
  const char* const names[] = {"q", "o", "k", "v", "dout", "dq", "dk", "dv"};
  for (int i = 0; i < (pass == GIWA_BACKWARD ? 8 : 4); ++i) {
    for (const int64 size : tensors[i]->sizes)
      if (size < 0) return status::invalid(names[i], "sizes must not be negative");
    if (c.q_offsets != nullptr && (i < 2 || pass != GIWA_CACHED) && tensors[i]->sizes[0] != 1)
      return status::invalid(names[i], "the batch of packed sequences must be 1");
  }
  if (c.place != GIWA_GPU && c.place != GIWA_CPU) return status::invalid("place", "must be GIWA_GPU or GIWA_CPU");
  if (c.dtype != GIWA_FP16 && c.dtype != GIWA_BF16) return status::invalid("dtype", "must be GIWA_FP16 or GIWA_BF16");
  if (c.window < 0) return status::invalid("window", "must not be negative");
  if (c.workspace_bytes < 0) return status::invalid("workspace_bytes", "must not be negative");
  return {};
}

// Calls `run` with the place and the mask, and as constants, in `types`, the element type, the head size and the rank.
template <class Element, int HeadSize, int Rank>
struct types {
  using element = Element;
  static constexpr int head_size = HeadSize, rank = Rank;
};
template <class Run>
status dispatch(const giwa_attention& c, const Run& run) {
  const auto with_mask = [&](auto chosen) -> status {
    const int reach = c.window > 0 ? c.window - 1 : INT_MAX;
    const auto band = giwa::keys_back{reach} & giwa::keys_ahead{c.causal != 0 ? 0 : reach};
    if (c.place == GIWA_CPU) return run(chosen, giwa::host, band);  // one mask serves all
#if defined(__CUDACC__)
    const auto stream = static_cast<cudaStream_t>(c.stream);
    if (c.window > 0) return run(chosen, stream, band);
    if (c.causal != 0) return run(chosen, stream, giwa::causal{});
    return run(chosen, stream, giwa::full{});
#else
    return {.code = giwa::status_code::not_supported, .message = "this library was compiled for the CPU alone"};
#endif
  };
  const auto with_element = [&]<class Element>(Element) {
    return giwa::choose_head_size<GIWA_C_HEAD_SIZES>(c.q.sizes[3], [&](auto size) {
      return c.q_offsets != nullptr ? with_mask(types<Element, size, 3>{}) : with_mask(types<Element, size, 4>{});
    });
  };
  return c.dtype == GIWA_FP16 ? with_element(giwa::fp16{}) : with_element(giwa::bf16{});
}

status forward(const giwa_attention& c) {
  return dispatch(c, [&]<class T>(T, const auto& where, const auto& mask) {
    const auto in = [](const giwa_tensor& t) { return view<T::rank, const typename T::element>(t); };
    return giwa::attention_forward<T::head_size>(where, in(c.q), in(c.k), in(c.v),
                                                 view<T::rank, typename T::element>(c.o), mask,
                                                 options_of<giwa::attention_options>(c));
  });
}

status backward(const giwa_attention& c) {
  return dispatch(c, [&]<class T>(T, const auto& where, const auto& mask) {
    const auto in = [](const giwa_tensor& t) { return view<T::rank, const typename T::element>(t); };
    const auto out = [](const giwa_tensor& t) { return view<T::rank, typename T::element>(t); };
    return giwa::attention_backward<T::head_size>(where, in(c.q), in(c.k), in(c.v), in(c.o), in(c.dout), out(c.dq),
                                                  out(c.dk), out(c.dv), mask,
                                                  options_of<giwa::attention_backward_options>(c));
  });
}

status cached(const giwa_attention& c) {
  return dispatch(c, [&]<class T>(T, const auto& where, const auto& mask) {
    using element = typename T::element;
    return giwa::attention_cached<T::head_size>(where, cache_of<element>(c), view<T::rank, const element>(c.q),
                                                view<T::rank, element>(c.o), mask, options_of<giwa::cached_options>(c));
  });
}

template <int Rank>
int64 bytes_of(int pass, const giwa_attention& c, const giwa::workspace_gpu& gpu) {
  using T = giwa::bf16;  // or fp16, for the same bytes
  const auto x = [](const giwa_tensor& t) { return view<Rank, T>(t); };
  const auto q = x(c.q), k = x(c.k), v = x(c.v), o = x(c.o);
  if (pass == GIWA_CACHED)
    return giwa::workspace_bytes(cache_of<T>(c), q, o, {}, {}, options_of<giwa::cached_options>(c), gpu);
  if (pass == GIWA_FORWARD) return giwa::workspace_bytes(q, k, v, o, options_of<giwa::attention_options>(c));
  return giwa::workspace_bytes(q, k, v, o, x(c.dout), x(c.dq), x(c.dk), x(c.dv), giwa::full{}, giwa::plain_score{},
                               options_of<giwa::attention_backward_options>(c), gpu);
}

status workspace(int pass, const giwa_attention& c, int64_t* bytes) {
  if (bytes == nullptr) return status::invalid("bytes", "must not be NULL");
  *bytes = 0;
  if (c.place == GIWA_CPU) return {};
  giwa::workspace_gpu gpu;
#if defined(__CUDACC__)
  const giwa::result<int> device = giwa::current_device();
  if (!device.ok()) return device.state;
  const giwa::result<giwa::device_properties> found = giwa::properties_of(device.value);
  if (!found.ok()) return found.state;
  gpu = {.capability = found.value.capability.value(), .multiprocessors = found.value.multiprocessors};
#endif
  *bytes = c.q_offsets != nullptr ? bytes_of<3>(pass, c, gpu) : bytes_of<4>(pass, c, gpu);
  return {};
}

// Checks a call, runs it, and writes the sentence. Lets no exception out.
template <class Run>
int guarded(int pass, const giwa_attention* call, char* message, size_t message_bytes, const Run& run) {
  status s = call == nullptr ? status::invalid("call", "must not be NULL") : check(pass, *call);
  if (message != nullptr && message_bytes > 0) *message = 0;
  try {
    if (s.ok()) s = run(*call);
    if (!s.ok() && message != nullptr) std::snprintf(message, message_bytes, "%s", giwa::format_status(s).c_str());
  } catch (const std::exception&) {  // of the CPU's threads and memory
    s = {.code = giwa::status_code::out_of_memory, .message = "the host has no memory or threads for the call"};
    if (message != nullptr) std::snprintf(message, message_bytes, "%s", s.message);
  }
  return static_cast<int>(s.code);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT giwa_attention_forward(const giwa_attention* call, char* message, size_t message_bytes) {
  return guarded(GIWA_FORWARD, call, message, message_bytes, forward);
}
EXPORT giwa_attention_backward(const giwa_attention* call, char* message, size_t message_bytes) {
  return guarded(GIWA_BACKWARD, call, message, message_bytes, backward);
}
EXPORT giwa_attention_cached(const giwa_attention* call, char* message, size_t message_bytes) {
  return guarded(GIWA_CACHED, call, message, message_bytes, cached);
}
EXPORT giwa_attention_workspace_bytes(int pass, const giwa_attention* call, int64_t* bytes, char* message,
                                      size_t message_bytes) {
  return guarded(pass, call, message, message_bytes,
                 [&](const giwa_attention& c) { return workspace(pass, c, bytes); });
}
