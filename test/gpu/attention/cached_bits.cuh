// SPDX-License-Identifier: MIT
// Whether attention_cached on a GPU gives a row the same bits alone and in a batch, in slices of heads, with any workspace.
#ifndef GIWA_TEST_GPU_ATTENTION_CACHED_BITS_CUH
#define GIWA_TEST_GPU_ATTENTION_CACHED_BITS_CUH

#include <algorithm>

#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

namespace giwa_test {

/// `more`: some sequences, or all, have many rows, as the kernel for them has it.
inline cached_case_options bits_case_of(int64 page_size, bool packed, bool more = false) {
  cached_case_options c;
  c.heads = 10;
  c.kv_heads = 2;
  c.head_size = c.head_size_v = 128;
  c.queries = packed ? std::vector<int64>{1, 7, 0, 2, 8, 1} : std::vector<int64>{3, 3, 3, 3, 3, 3};
  if (more) c.queries = packed ? std::vector<int64>{1, 40, 9, 2, 130, 8} : std::vector<int64>{20, 20, 20, 20, 20, 20};
  c.packed = packed;
  c.page_size = page_size;
  c.keys = 1500;
  c.most = page_size == 0 ? 0 : giwa::ceil_div(c.keys, page_size);
  c.lengths = {1500, 130, 5, 0, 800, 256};
  return c;
}

/// A case on the GPU, and what the first call wrote. Causal, or with the mask Mask.
template <class T, class Element, int HeadSize = 128, int HeadSizeV = HeadSize, class Mask = giwa::causal>
struct bits {
  cached_case<T, Element> on_host;
  cached_on_gpu<T, Element, T> gpu{on_host};
  giwa::stream stream = new_stream();
  std::vector<T> o;
  std::vector<float> lse;

  explicit bits(const cached_case_options& options) : bits(cached_case<T, Element>(options)) {}
  explicit bits(cached_case<T, Element>&& prepared) : on_host(std::move(prepared)) {
    check_cuda(cudaDeviceSynchronize());
    run(gpu.views(), gpu.call_options(1 << 20));
    gpu.read_back();
    o = on_host.o.memory, lse = on_host.lse.memory;
    gpu.clear_outputs();
  }
  template <class Options>
  void run(const giwa::detail::cached_views<T, Element, T>& a, const Options& options) {
    Mask mask{};
    if constexpr (std::is_same_v<Mask, giwa::causal>) mask = giwa::causal::bottom_right;
    const giwa::status s = cached_of<HeadSize, HeadSizeV>(stream, a, mask, giwa::plain_score{}, options);
    INFO(giwa::format_status(s).c_str());
    REQUIRE(s.ok());
  }
  /// Whether the calls since the last look wrote the same; clears the outputs.
  bool same() {
    gpu.read_back();
    gpu.clear_outputs();
    return same_bits(on_host.o.memory, o) && same_bits(on_host.lse.memory, lse);
  }
};

/// Leaves `word` in the shared memory of all multiprocessors.
template <class T>
__global__ void fill_shared_memory(T word, int words) {
  extern __shared__ T memory[];
  for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) memory[i] = word;
  __syncthreads();
  if (memory[(threadIdx.x * 61 + 7) % static_cast<unsigned>(words)] != word) __trap();
}

/// The rows that no sequence has, in the cache and in shared memory, change no bit: NaN, infinity, the largest numbers, or zeros.
template <class Bits>
void check_past_the_end(Bits&& x) {
  using element = std::remove_cvref_t<decltype(x.on_host.k.memory[0])>;
  CAPTURE(x.on_host.options.text());
  const int bytes = static_cast<int>(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  check_cuda(cudaFuncSetAttribute(fill_shared_memory<unsigned>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  std::vector<element> kept[2] = {x.on_host.k.memory, x.on_host.v.memory};
  for (const unsigned word : {0u, 0xffffffffu, 0x7c007c00u, 0x7f807f80u, 0xfbfffbffu}) {
    CAPTURE(word);
    const auto other = [&](auto& of, const std::vector<element>& rows) {
      for (std::size_t i = 0; i < of.memory.size(); ++i)
        std::memcpy(&of.memory[i], reinterpret_cast<const char*>(&word) + i * sizeof(element) % 4, sizeof(element));
      x.on_host.for_each_row([&](int64 at, int64 row, int64 head) {
        for (int64 d = 0; d < of.extents[3]; ++d) {
          element* const to = &of.view()(at, row, head, d);
          *to = rows[static_cast<std::size_t>(to - of.memory.data())];
        }
      });
    };
    other(x.on_host.k, kept[0]), other(x.on_host.v, kept[1]);
    check_cuda(cudaMemcpy(x.gpu.k.data(), x.on_host.k.memory.data(), x.gpu.k.bytes(), cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy(x.gpu.v.data(), x.on_host.v.memory.data(), x.gpu.v.bytes(), cudaMemcpyHostToDevice));
    wait_for_device();
    fill_shared_memory<<<static_cast<unsigned>(2 * device_attribute(cudaDevAttrMultiProcessorCount)), 1024,
                         static_cast<std::size_t>(bytes), x.stream>>>(word, bytes / 4);
    x.run(x.gpu.views(), x.gpu.call_options(1 << 20));
    CHECK(x.same());
  }
}

/// Elements [first, last) of a dimension.
template <class T, int Rank>
tensor_view<T, Rank> slice(const tensor_view<T, Rank>& v, int d, int64 first, int64 last) {
  if (v.data() == nullptr) return v;
  auto extents = v.extents();
  if (extents[d] == 1 && last - first != 1) return v;  // scales that all share
  extents[d] = last - first;
  return {v.data() + first * v.stride(d), extents, v.strides()};
}
template <class T, int Rank>
tensor_view<T, Rank> reversed(const tensor_view<T, Rank>& v) {
  auto strides = v.strides();
  strides[0] = -strides[0];
  return {v.data() + (v.extent(0) - 1) * v.stride(0), v.extents(), strides};
}

/// Sequence b alone. `most` is exact, so that a call of few rows may choose another tile than the batch.
template <class Bits>
void run_alone(Bits& x, int64 b, int64 workspace_bytes) {
  const auto all = x.gpu.views();
  auto a = all;
  giwa::cached_options options = x.gpu.call_options(workspace_bytes);
  a.cache.lengths += b;
  if (all.is_paged()) {
    if (all.cache.pages.offsets != nullptr)
      a.cache.pages.offsets += b;
    else
      a.cache.pages.indices += b * all.cache.pages.stride;
    a.cache.sequences = 1;
  } else {
    a.cache.k = slice(all.cache.k, 0, b, b + 1), a.cache.v = slice(all.cache.v, 0, b, b + 1);
    for (auto* scales : {&a.cache.scales.k, &a.cache.scales.v})
      if (scales->extent(0) > 1) *scales = slice(*scales, 0, b, b + 1);
  }
  if (all.is_packed()) {
    a.packed = {all.packed.offsets + b, 1, x.on_host.options.queries[static_cast<std::size_t>(b)]};
  } else {
    a.q = slice(all.q, 0, b, b + 1), a.o = slice(all.o, 0, b, b + 1);
    options.lse = slice(options.lse, 0, b, b + 1);
  }
  x.run(a, options);
}

/// `cuts_groups`: the bits do not depend on how many heads of a group a call has.
template <int HeadSize = 128, int HeadSizeV = HeadSize, class T, class Element>
void check_bits(cached_case<T, Element>&& prepared, bool cuts_groups = true) {
  bits<T, Element, HeadSize, HeadSizeV> x(std::move(prepared));
  const cached_case_options& c = x.on_host.options;
  CAPTURE(c.text());
  for (const int64 bytes : {int64{0}, int64{16}, int64{50000}, int64{200000}, int64{8} << 20}) {
    CAPTURE(bytes);
    x.run(x.gpu.views(), x.gpu.call_options(bytes));
    CHECK(x.same());
    for (int64 b = 0; b < c.sequences(); ++b) run_alone(x, b, bytes);
    CHECK(x.same());
  }
  // The head of each group of heads alone, and heads of one group in two calls.
  const auto all = x.gpu.views();
  const int64 group = c.heads / c.kv_heads;
  const auto run_heads = [&](int64 first, int64 last, int64 kv) {
    auto a = all;
    giwa::cached_options options = x.gpu.call_options(1 << 20);
    a.q = slice(all.q, 2, first, last), a.o = slice(all.o, 2, first, last);
    a.cache.k = slice(all.cache.k, 2, kv, kv + 1), a.cache.v = slice(all.cache.v, 2, kv, kv + 1);
    if (c.k_scales >= 0 && (c.k_scales & 4) != 0) a.cache.scales.k = slice(all.cache.scales.k, 2, kv, kv + 1);
    if (c.v_scales >= 0 && (c.v_scales & 4) != 0) a.cache.scales.v = slice(all.cache.scales.v, 2, kv, kv + 1);
    options.lse = slice(options.lse, 1, first, last);
    x.run(a, options);
  };
  for (int64 kv = 0; kv < c.kv_heads; ++kv) run_heads(kv * group, (kv + 1) * group, kv);
  CHECK(x.same());
  if (!cuts_groups) return;
  for (int64 kv = 0; kv < c.kv_heads; ++kv) {
    run_heads(kv * group, kv * group + 2, kv);
    run_heads(kv * group + 2, (kv + 1) * group, kv);
  }
  CHECK(x.same());
  if (!c.packed) return;
  auto a = all;
  // Smaller tiles of rows, of which a long sequence has several. Many rows have another kernel if `most` says so.
  constexpr int64 few = giwa::detail::few_queries_of_sequence;
  a.packed.most = *std::max_element(c.queries.begin(), c.queries.end()) > few ? few + 1 : 1;
  x.run(a, x.gpu.call_options(1 << 20));
  CHECK(x.same());
}
template <class T, class Element, int HeadSize = 128, int HeadSizeV = HeadSize>
void check_bits(const cached_case_options& c, bool cuts_groups = true) {
  check_bits<HeadSize, HeadSizeV>(cached_case<T, Element>(c), cuts_groups);
}

}  // namespace giwa_test

#endif
