// SPDX-License-Identifier: MIT
// One kernel library: one pass, element type, pair of head sizes, kind of mask and set of score modifiers, all of them macros.
// build.py compiles it at the first use, with nvcc for a GPU and with the host compiler for the CPU. It includes
// nothing of PyTorch.
#if defined(__CUDACC__)
#include <giwa/attention.cuh>
#if GIWA_TORCH_PASS == 1
#include <giwa/attention_backward.cuh>
#elif GIWA_TORCH_PASS == 2 || GIWA_TORCH_PASS == 3
#include <giwa/cache.cuh>
#endif
#if GIWA_TORCH_PASS == 4 || GIWA_TORCH_MASK >= 4
#include <giwa/block_map.cuh>
#endif
#else
#include <giwa/host.hpp>
#if defined(_OPENMP)
#include <omp.h>
#endif
#endif

#include <cstring>

#include "call.hpp"

namespace {

using element = GIWA_TORCH_ELEMENT;
// Of e4m3, as FlashAttention-3 has it.
using output = giwa::stdlib::conditional_t<giwa::stdlib::same_as<element, giwa::e4m3>, giwa::bf16, element>;
using giwa::int64;
using giwa_torch::call;
using giwa_torch::tensor;
constexpr int head_size = GIWA_TORCH_HEAD_SIZE, head_size_v = GIWA_TORCH_HEAD_SIZE_V;
constexpr int score_flags = GIWA_TORCH_SCORE;

constexpr bool has(int flag) { return (score_flags & flag) != 0; }

using bias_element = giwa::stdlib::conditional_t<has(giwa_torch::score_bias_float), float, output>;

template <class T>
giwa::tensor_view<T, 4> view_of(const tensor& t) {
  if (t.sizes[3] == 0) return {};  // there is none; one without rows has no data either
  return {static_cast<T*>(t.data),
          {t.sizes[0], t.sizes[1], t.sizes[2], t.sizes[3]},
          {t.strides[0], t.strides[1], t.strides[2], t.strides[3]}};
}
template <class T>
giwa::tensor_view<T, 3> packed_view_of(const tensor& t) {  // the batch is 1
  if (t.sizes[3] == 0) return {};
  return {static_cast<T*>(t.data), {t.sizes[1], t.sizes[2], t.sizes[3]}, {t.strides[1], t.strides[2], t.strides[3]}};
}
template <class T>
giwa::tensor_view<T, 3> lse_of(const call& c, T* data) {
  if (data == nullptr) return {};
  return {data, {c.q.sizes[0], c.q.sizes[2], c.q.sizes[1]}};
}
template <class T>
giwa::tensor_view<T, 1> heads_of(const call& c, T* data) {
  if (data == nullptr) return {};
  return {data, {c.q.sizes[2]}};
}

#if GIWA_TORCH_MASK >= 3
// Keeps what a tensor of bool keeps, (batch, heads, queries, keys) with strides of 0 where it is broadcast.
struct kept_by_tensor {
  static constexpr bool any_range = true;
  const bool* data;
  int64 strides[4];
  GIWA_HOST_DEVICE constexpr bool operator()(giwa::attention_coord c) const {
    return data == nullptr ||
           data[c.batch * strides[0] + c.head * strides[1] + c.query * strides[2] + c.key * strides[3]];
  }
  GIWA_HOST_DEVICE constexpr giwa::tile_keep classify(const giwa::score_tile&) const {
    return data == nullptr ? giwa::tile_keep::all : giwa::tile_keep::some;
  }
};
kept_by_tensor tensor_mask_of(const call& c) {
  return {static_cast<const bool*>(c.mask.data),
          {c.mask.strides[0], c.mask.strides[1], c.mask.strides[2], c.mask.strides[3]}};
}
#endif
#if GIWA_TORCH_MASK >= 4
// Keeps what a tensor of bool, packed bits and ids of documents all keep; each without data keeps everything.
struct kept_by_data {
  static constexpr bool any_range = true;
  kept_by_tensor tensor;
  giwa::packed_bits bits;
  giwa::segment_ids segments;
  GIWA_HOST_DEVICE constexpr bool operator()(giwa::attention_coord c) const {
    return tensor(c) && (bits.bits == nullptr || bits(c)) && (segments.queries == nullptr || segments(c));
  }
  GIWA_HOST_DEVICE constexpr giwa::tile_keep classify(const giwa::score_tile& t) const {
    return bits.bits == nullptr && segments.queries == nullptr ? tensor.classify(t) : giwa::tile_keep::some;
  }
};
#endif
#if GIWA_TORCH_MASK == 5 || GIWA_TORCH_PASS == 4
giwa::block_map map_of(const call& c) {
  const auto& [batch, heads, queries, keys, block_queries, block_keys, by_keys] = c.blocks;
  return {.words = static_cast<giwa::block_word*>(c.block_words),
          .batch = batch,
          .heads = heads,
          .queries = queries,
          .keys = keys,
          .block_queries = block_queries,
          .block_keys = block_keys,
          .by_keys = by_keys != 0};
}
#endif

constexpr giwa::alignment alignment_of(const call& c) {
  return c.bottom_right ? giwa::alignment::bottom_right : giwa::alignment::top_left;
}

#if GIWA_TORCH_MASK == 0
[[maybe_unused]] giwa::full mask_of(const call&) { return {}; }
#elif GIWA_TORCH_MASK == 1
[[maybe_unused]] giwa::causal mask_of(const call& c) { return giwa::causal{alignment_of(c)}; }
#else
[[maybe_unused]] auto mask_of(const call& c) {
  const giwa::alignment align = alignment_of(c);
  const auto band = giwa::keys_back{c.left, align} & giwa::keys_ahead{c.right, align};
#if GIWA_TORCH_MASK == 2
  return band;
#elif GIWA_TORCH_MASK == 3
  return band & tensor_mask_of(c);
#else
  const auto inner = band & kept_by_data{tensor_mask_of(c),
                                         {.bits = c.bits, .keys = c.bit_keys, .offsets = c.bit_offsets},
                                         {c.q_segments, c.k_segments, c.q_segment_stride, c.k_segment_stride}};
#if GIWA_TORCH_MASK == 4
  return inner;
#else
  return giwa::block_sparse{map_of(c), inner};
#endif
#endif
}
#endif

// Two modifiers, of which the first may be none.
template <class Next>
Next chain(giwa::plain_score, const Next& next) {
  return next;
}
template <class First, class Next>
giwa::then<First, Next> chain(const First& first, const Next& next) {
  return {first, next};
}
[[maybe_unused]] auto capped(const call& c) {
  if constexpr (has(giwa_torch::score_softcap))
    return giwa::softcap{c.softcap};
  else
    return giwa::plain_score{};
}
template <class Before>
auto sloped([[maybe_unused]] const call& c, const Before& before) {
#if GIWA_TORCH_PASS == 1
  if constexpr (has(giwa_torch::score_alibi_gradient))
    return chain(before, giwa::alibi_with_gradient(c.slopes, heads_of(c, c.dslopes), alignment_of(c)));
  else
#endif
      if constexpr (has(giwa_torch::score_alibi))
    return chain(before, giwa::alibi{c.slopes, c.slopes_stride, alignment_of(c)});
  else
    return before;
}
template <class Before>
auto biased([[maybe_unused]] const call& c, const Before& before) {
#if GIWA_TORCH_PASS == 1
  if constexpr (has(giwa_torch::score_bias_gradient))
    return chain(before, giwa::bias_with_gradient(view_of<const bias_element>(c.bias), view_of<float>(c.dbias)));
  else
#endif
      if constexpr (has(giwa_torch::score_bias))
    return chain(before, giwa::bias(view_of<const bias_element>(c.bias)));
  else
    return before;
}
// FlashAttention's order: the softcap, then ALiBi. The bias is last.
[[maybe_unused]] auto score_of(const call& c) {
  const auto score = biased(c, sloped(c, capped(c)));
  if constexpr (has(giwa_torch::score_dropout))
    return giwa::dropout(c.dropout, 0, score, c.dropout_seed);
  else
    return score;
}

[[maybe_unused]] giwa::sequences sequences_of(const call& c) {
  return {.q_offsets = c.q_offsets,
          .k_offsets = c.k_offsets,
          .count = c.q_offsets != nullptr ? c.sequences : 0,
          .max_q = c.max_q,
          .q_lengths = c.q_lengths,
          .k_lengths = c.k_lengths,
          .k_batch_index = c.k_batch_index};
}

[[maybe_unused]] giwa::tensor_view<unsigned char, 1> workspace_of(const call& c) {
  if (c.workspace == nullptr) return {};
  return {static_cast<unsigned char*>(c.workspace), {c.workspace_bytes}};
}

#if defined(__CUDACC__)
cudaStream_t where(const call& c) { return static_cast<cudaStream_t>(c.stream); }
#else
giwa::host_t where([[maybe_unused]] const call& c) {
#if defined(_OPENMP)
  omp_set_num_threads(c.threads);
#endif
  return giwa::host;
}
#endif

template <class Options>
void set_scale(const call& c, Options& options) {
  if (c.has_scale) options.scale = c.scale;
}

template <class T = const float>
giwa::tensor_view<T, 3> scales_of(const tensor& t) {
  if (t.data == nullptr) return {};
  return {static_cast<T*>(t.data), {t.sizes[0], t.sizes[1], t.sizes[2]}, {t.strides[0], t.strides[1], t.strides[2]}};
}

#if GIWA_TORCH_PASS == 0

int64 bytes_of(const call& c) {
  const auto bytes = [&](const auto& q, const auto& k, const auto& v, const auto& o) {
    return giwa::workspace_bytes(q, k, v, o, {.sequences = sequences_of(c)});
  };
  if (c.q_offsets != nullptr)
    return bytes(packed_view_of<const element>(c.q), packed_view_of<const element>(c.k),
                 packed_view_of<const element>(c.v), packed_view_of<output>(c.o));
  return bytes(view_of<const element>(c.q), view_of<const element>(c.k), view_of<const element>(c.v),
               view_of<output>(c.o));
}
giwa::status run(const call& c) {
  giwa::attention_options options;
  options.scales = {.q = scales_of(c.q_scales), .k = scales_of(c.k_scales), .v = scales_of(c.v_scales)};
  set_scale(c, options);
  options.lse = lse_of(c, c.lse);
  options.sinks = heads_of(c, c.sinks);
  options.align = alignment_of(c);
  options.workspace = workspace_of(c);
  options.sequences = sequences_of(c);
  const auto attend = [&](const auto& q, const auto& k, const auto& v, const auto& o) {
    return giwa::attention_forward<giwa::head_sizes<head_size, head_size_v>>(where(c), q, k, v, o, mask_of(c),
                                                                             score_of(c), options);
  };
  if (c.q_offsets != nullptr)
    return attend(packed_view_of<const element>(c.q), packed_view_of<const element>(c.k),
                  packed_view_of<const element>(c.v), packed_view_of<output>(c.o));
  return attend(view_of<const element>(c.q), view_of<const element>(c.k), view_of<const element>(c.v),
                view_of<output>(c.o));
}

#elif GIWA_TORCH_PASS == 1

#if defined(__CUDA_ARCH_LIST__)
constexpr int capability = __CUDA_ARCH_LIST__ / 10;  // a library is compiled for one GPU
#else
constexpr int capability = 0;
#endif
int64 bytes_of(const call& c) {
  const auto bytes = [&](const auto& q, const auto& k, const auto& v, const auto& o) {
    return giwa::workspace_bytes(q, k, v, o, o, q, k, v, mask_of(c), score_of(c),
                                 {.sequences = sequences_of(c), .any_order = c.any_order, .split_heads = true},
                                 {.capability = capability});
  };
  if (c.q_offsets != nullptr)
    return bytes(packed_view_of<element>(c.q), packed_view_of<element>(c.k), packed_view_of<element>(c.v),
                 packed_view_of<element>(c.o));
  return bytes(view_of<element>(c.q), view_of<element>(c.k), view_of<element>(c.v), view_of<element>(c.o));
}
giwa::status run(const call& c) {
  giwa::attention_backward_options options;
  set_scale(c, options);
  options.lse = lse_of<const float>(c, c.lse);
  options.sequences = sequences_of(c);
  options.dlse = lse_of(c, c.dlse);
  options.sinks = heads_of(c, c.sinks);
  options.dsinks = heads_of(c, c.dsinks);
  options.align = alignment_of(c);
  options.workspace = workspace_of(c);
  options.any_order = c.any_order, options.split_heads = true;
  const auto differentiate = [&](const auto& q, const auto& k, const auto& v, const auto& o, const auto& dout,
                                 const auto& dq, const auto& dk, const auto& dv) {
    return giwa::attention_backward<giwa::head_sizes<head_size, head_size_v>>(where(c), q, k, v, o, dout, dq, dk, dv,
                                                                              mask_of(c), score_of(c), options);
  };
  if (c.q_offsets != nullptr)
    return differentiate(packed_view_of<const element>(c.q), packed_view_of<const element>(c.k),
                         packed_view_of<const element>(c.v), packed_view_of<const element>(c.o),
                         packed_view_of<const element>(c.dout), packed_view_of<element>(c.dq),
                         packed_view_of<element>(c.dk), packed_view_of<element>(c.dv));
  return differentiate(view_of<const element>(c.q), view_of<const element>(c.k), view_of<const element>(c.v),
                       view_of<const element>(c.o), view_of<const element>(c.dout), view_of<element>(c.dq),
                       view_of<element>(c.dk), view_of<element>(c.dv));
}

#elif GIWA_TORCH_PASS == 4

int64 bytes_of(const call& c) { return c.block_words != nullptr ? 0 : map_of(c).bytes(); }  // of the map itself
giwa::status run(const call& c) {
  const auto list = [&](int i) -> giwa::block_list {
    const auto counts = view_of<const int>(c.counts[i]);
    return {{counts.data(),
             {counts.extent(0), counts.extent(1), counts.extent(2)},
             {counts.stride(0), counts.stride(1), counts.stride(2)}},
            view_of<const int>(c.indices[i])};
  };
  return giwa::make_block_map(where(c), giwa::block_lists{.full = list(0), .partial = list(1)}, map_of(c));
}

#else

using cache_element = giwa::stdlib::conditional_t<
    has(giwa_torch::cache_e4m3), giwa::e4m3,
    giwa::stdlib::conditional_t<has(giwa_torch::cache_int8), giwa::int8_code,
                                giwa::stdlib::conditional_t<has(giwa_torch::cache_int4), giwa::int4_pair, element>>>;

template <class Element>
giwa::kv_cache<Element> cache_of(const call& c) {
  giwa::kv_cache<Element> cache;
  cache.k = view_of<Element>(c.k_cache);
  cache.v = view_of<Element>(c.v_cache);
  cache.scales = {scales_of(c.k_scales), scales_of(c.v_scales)};
  cache.lengths = c.k_lengths;
  if (c.pages != nullptr) {
    cache.pages.indices = c.pages;
    cache.pages.stride = c.pages_stride;
    cache.pages.most = c.pages_most;
    cache.sequences = c.sequences;
  }
  return cache;
}

#if GIWA_TORCH_PASS == 2

int64 bytes_of([[maybe_unused]] const call& c) {
#if defined(__CUDACC__)
  int device = 0, multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 0;  // the call says what is wrong
  const giwa::workspace_gpu gpu{.multiprocessors = multiprocessors};
  if (c.q_offsets != nullptr)
    return giwa::workspace_bytes(
        cache_of<const cache_element>(c), packed_view_of<const element>(c.q), packed_view_of<element>(c.o), {}, {},
        {.sequences = {.q_offsets = c.q_offsets, .count = c.sequences, .max_q = c.max_q}}, gpu);
  return giwa::workspace_bytes(cache_of<const cache_element>(c), view_of<const element>(c.q), view_of<element>(c.o), {},
                               {}, {}, gpu);
#else
  return 0;
#endif
}
giwa::status run(const call& c) {
  giwa::cached_options options;
  set_scale(c, options);
  options.lse = lse_of(c, c.lse);
  options.sinks = heads_of(c, c.sinks);
  options.align = alignment_of(c);
  options.workspace = workspace_of(c);
  const giwa::kv_cache<const cache_element> cache = cache_of<const cache_element>(c);
  if (c.q_offsets != nullptr) options.sequences = {.q_offsets = c.q_offsets, .count = c.sequences, .max_q = c.max_q};
  if (c.q_offsets != nullptr)
    return giwa::attention_cached<giwa::head_sizes<head_size, head_size_v>>(
        where(c), cache, packed_view_of<const element>(c.q), packed_view_of<element>(c.o), mask_of(c), score_of(c),
        options);
  return giwa::attention_cached<giwa::head_sizes<head_size, head_size_v>>(
      where(c), cache, view_of<const element>(c.q), view_of<element>(c.o), mask_of(c), score_of(c), options);
}

#else

using table_element = giwa::stdlib::conditional_t<has(giwa_torch::append_tables_of_float), float, element>;

int64 bytes_of(const call&) { return 0; }
giwa::status run(const call& c) {
  giwa::append_options<element> options;
  if (c.q.data != nullptr) {
    options.q = view_of<element>(c.q);
    options.q_to = view_of<element>(c.o);
  }
  if (c.finds_scales) options.k_scales = scales_of<float>(c.k_scales), options.v_scales = scales_of<float>(c.v_scales);
  const int64 rows = c.k.sizes[0] * c.k.sizes[1];
  if (c.positions != nullptr) options.positions = giwa::tensor_view<const int, 1>(c.positions, {rows});
  if (c.slots != nullptr) options.slots = giwa::tensor_view<const int, 1>(c.slots, {rows});
  const auto append = [&](const auto& rotary) {
    return giwa::append_to_cache(where(c), cache_of<cache_element>(c), view_of<const element>(c.k),
                                 view_of<const element>(c.v), rotary, options);
  };
  if (c.cos == nullptr) return append(giwa::no_rotary{});
  const auto table = [&](const void* data, const int64(&strides)[2]) {
    return giwa::tensor_view<const table_element, 2>(static_cast<const table_element*>(data),
                                                     {c.table_sizes[0], c.table_sizes[1]}, {strides[0], strides[1]});
  };
  giwa::rotary_layout layout;
  layout.interleaved = c.interleaved;
  layout.size = 2 * static_cast<int>(c.table_sizes[1]);
  return append(giwa::rotary_table(table(c.cos, c.cos_strides), table(c.sin, c.sin_strides), layout));
}

#endif
#endif

}  // namespace

extern "C" {

// The bytes of workspace with which a call is fastest; on the CPU none are needed. Of a map without words, those of its words.
__attribute__((visibility("default"))) int64 giwa_torch_workspace_bytes(const call* c) {
#if defined(__CUDACC__) || GIWA_TORCH_PASS == 4
  return bytes_of(*c);
#else
  static_cast<void>(c), static_cast<void>(bytes_of);
  return 0;
#endif
}

// Returns a status_code of giwa, and writes what is wrong to `text`.
__attribute__((visibility("default"))) int giwa_torch_run(const call* c, char* text, std::size_t size) {
  const giwa::status s = run(*c);
  if (!s.ok()) {
    std::strncpy(text, giwa::format_status(s).c_str(), size - 1);
    text[size - 1] = '\0';
  }
  return static_cast<int>(s.code);
}
}
