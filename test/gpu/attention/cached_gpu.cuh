// SPDX-License-Identifier: MIT
// A case of attention_cached in a GPU's memory: runs it, and compares the result with the reference.
#ifndef GIWA_TEST_GPU_ATTENTION_CACHED_GPU_CUH
#define GIWA_TEST_GPU_ATTENTION_CACHED_GPU_CUH

#include <giwa/cache.cuh>

#include "support/cached_case.hpp"
#include "support/gpu.cuh"
#include "support/same_bits.hpp"

namespace giwa_test {

/// A case's memory on the GPU, or scales in managed memory. The outputs and the workspace begin as 0xff.
template <class T, class Element, class O>
struct cached_on_gpu {
  cached_case<T, Element, O>& on_host;
  gpu_array<T> q;
  gpu_array<Element> k, v;
  gpu_array<O> o;
  gpu_array<float> lse, k_scales, v_scales, sinks;
  gpu_array<int> lengths, indices, page_offsets, q_offsets;
  gpu_array<unsigned char> workspace{std::size_t{8} << 20};  // more than small cases use

  explicit cached_on_gpu(cached_case<T, Element, O>& c, array_place of_scales = array_place::gpu)
      : on_host(c),
        q(c.q.memory),
        k(c.k.memory),
        v(c.v.memory),
        o(c.o.memory),
        lse(c.lse.memory),
        k_scales(c.k_scales.memory, of_scales),
        v_scales(c.v_scales.memory, of_scales),
        sinks(c.sinks.memory),
        lengths(c.options.lengths),
        indices(c.indices),
        page_offsets(c.page_offsets),
        q_offsets(c.q_offsets) {}

  giwa::detail::cached_views<T, Element, O> views() const {
    auto a = on_host.views();
    const auto move = [](const int*& p, const gpu_array<int>& to) { p = p == nullptr ? nullptr : to.data(); };
    a.q = on_host.q.at(q.data());
    a.o = on_host.o.at(o.data());
    a.cache.k = on_host.k.at(k.data());
    a.cache.v = on_host.values_at(k.data(), v.data());
    if (on_host.options.k_scales >= 0) a.cache.scales.k = on_host.k_scales.at(k_scales.data());
    if (on_host.options.v_scales >= 0) a.cache.scales.v = on_host.v_scales.at(v_scales.data());
    move(a.cache.lengths, lengths);
    move(a.cache.pages.indices, indices);
    move(a.cache.pages.offsets, page_offsets);
    move(a.packed.offsets, q_offsets);
    return a;
  }
  giwa::cached_options call_options(int64 workspace_bytes = 0) const {
    giwa::cached_options a = on_host.call_options();
    if (on_host.options.lse) a.lse = on_host.lse.at(lse.data());
    if (on_host.options.sinks) a.sinks = on_host.sinks.at(sinks.data());
    a.workspace = {workspace.data(), {workspace_bytes}};
    return a;
  }
  void clear_outputs() {
    o.fill(0xff);
    lse.fill(0xff);
    workspace.fill(0xff);
  }
  /// Copies o and lse into the case; waits for the GPU.
  void read_back() const {
    on_host.o.memory = o.to_host();
    on_host.lse.memory = lse.to_host();
  }
};

/// The type in which the plain implementation rounds: that of products on tensor cores, else fp32.
template <class T, class Element>
using plain_type = std::conditional_t<std::is_same_v<T, Element> || sizeof(T) == 4 || giwa::detail::row_format<Element>,
                                      T, giwa::fp16>;

/// Empty, or what is wrong with the result of a case, with workspaces of several sizes, all of which give the same bits.
template <int HeadSize, int HeadSizeV, class Which = giwa::any_queries, class T, class Element, class O, class Mask,
          class Score>
std::string cached_fault_on_gpu(cached_case<T, Element, O>& c, const Mask& mask, const Score& score) {
  using plain = plain_type<T, Element>;
  const attention_answers answers = answers_of<plain>(c, mask, score);
  cached_on_gpu<T, Element, O> gpu(c);
  const giwa::stream s = new_stream();
  std::vector<O> o;
  std::vector<float> lse;
  for (const int64 bytes : {int64{8} << 20, int64{0}, int64{100} << 10, int64{16}}) {
    gpu.clear_outputs();
    const giwa::status state =
        cached_of<HeadSize, HeadSizeV, Which>(s, gpu.views(), mask, score, gpu.call_options(bytes));
    if (!state.ok()) return giwa::format_status(state).c_str() + ("; " + c.options.text());
    gpu.read_back();
    if (!o.empty() && (!same_bits(c.o.memory, o) || !same_bits(c.lse.memory, lse)))
      return "other bits with a workspace of " + std::to_string(bytes) + " bytes; " + c.options.text();
    if (o.empty()) {
      const std::string failure = judge<plain>(c, answers).failure;
      if (!failure.empty()) return failure;
    }
    o = c.o.memory, lse = c.lse.memory;
  }
  return "";
}
template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T,
          class Which = giwa::any_queries, class Mask = giwa::full, class Score = giwa::plain_score>
std::string cached_fault_on_gpu_of(cached_case_options options, const Mask& mask = {}, const Score& score = {}) {
  options.head_size = HeadSize;
  options.head_size_v = HeadSizeV;
  cached_case<T, Element, O> c(options);
  return cached_fault_on_gpu<HeadSize, HeadSizeV, Which>(c, mask, score);
}

/// Cases in which every axis takes all of its values, and together with many of the others'.
inline cached_case_options drawn_cached_case(int i) {
  constexpr int64 pages[] = {0, 16, 1, 64, 3, 128, 7, 24, 100, 8}, groups[] = {1, 8, 40, 3, 5, 33, 2};
  constexpr case_layout layouts[] = {case_layout::contiguous, case_layout::heads_first, case_layout::padded};
  cached_case_options c;
  random_sequence random(static_cast<uint64>(i) + 1000);
  c.seed = static_cast<uint64>(i);
  c.kv_heads = 1 + i % 3;
  c.heads = c.kv_heads * groups[i % 7];
  const int64 longest = small_mode() ? 300 : c.heads > 20 ? 500 : 1500;
  c.page_size = pages[i % 10];
  c.keys = longest;
  c.most = c.page_size == 0 ? 0 : giwa::ceil_div(longest, c.page_size);
  c.lists = i % 4 == 3;
  c.shared = i % 11 == 5;
  c.strange = i % 6 == 4 ? 5 : 0;
  c.packed = i % 2 == 1;
  const int64 sequences = i % 9 == 8 ? 40 : 1 + i % 5;
  for (int64 b = 0; b < sequences; ++b)
    c.queries.push_back(random.below(4) == 0 && c.heads < 20 ? random.below(71) : random.below(10));
  c.queries.erase(c.queries.begin());
  // Those with more than 8 queries are computed by the kernel for many rows, where there is one.
  if (!c.packed)
    c.queries.assign(static_cast<std::size_t>(sequences), c.heads < 10 && i % 4 == 2 ? 17 + i % 50 : 1 + i % 9);
  const int lengths[] = {-1, 0, 1, 127, 128, 129, 2147483647};
  for (int64 b = 0; b < sequences; ++b)
    c.lengths.push_back(random.below(5) == 0 ? lengths[random.below(7)] : static_cast<int>(random.below(longest)));
  if (sequences == 1) c.lengths[0] = static_cast<int>(longest);
  if (sequences == 40)
    for (int& n : c.lengths) n %= 100;
  c.layout = {layouts[i % 3], layouts[i / 3 % 3], layouts[i / 3 % 3], layouts[i / 2 % 3]};
  c.offset = i % 8 == 6 ? 1 : 0;
  c.sinks = i % 5 == 2;
  c.lse = i % 7 != 4;
  c.spread = i % 13 == 7 ? 4 : 1;
  return c;
}

/// Empty, or the first fault of drawn cases `first`, first + step, and so on.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string first_cached_fault(int first, int step, int count, const Mask& mask = {}, const Score& score = {}) {
  for (int n = 0; n < (small_mode() ? (count + 5) / 6 : count); ++n) {
    cached_case_options c = drawn_cached_case(first + n * step);
    if (giwa::detail::element_traits<Element>::has_scales) c.k_scales = n % 9 - 1, c.v_scales = (n * 5 + 3) % 9 - 1;
    const std::string fault = cached_fault_on_gpu_of<T, HeadSize, HeadSizeV, Element, O>(c, mask, score);
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace giwa_test

#endif
