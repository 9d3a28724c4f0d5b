// SPDX-License-Identifier: MIT
// What block_sparse.py calls on a GPU: attention and its gradients with maps of blocks, head size 128, as C functions. fp16; part 4 bf16.
// GIWA_BENCH_PART leaves functions out, so that parts compile at the same time: 1 forward, 2 backward, 3 maps, 4 forward in bf16.
#include <giwa/attention.cuh>
#include <giwa/attention_backward.cuh>
#include <giwa/block_map.cuh>

#include <cstdio>

// One call. q, o, dout and dq (1, queries, heads, 128); k, v, dk and dv (1, keys, heads, 128); lse (1, heads, queries); all
// contiguous, or with `heads_first` the tokens of each head. The map is for every head, `words` its memory. Null: all blocks are visible.
struct sparse_call {
  long long queries, keys, heads, block_queries, block_keys, order, heads_first;
  const void *q, *k, *v, *dout;
  void *o, *dq, *dk, *dv;
  float* lse;
  giwa::block_word* words;
  unsigned char* workspace;
  long long workspace_bytes;
  const int *counts, *indices;  // (heads, rows of blocks), (heads, rows of blocks, capacity): full blocks
  long long capacity;
  const bool* visible;  // (heads, queries, keys)
  cudaStream_t stream;

  giwa::block_map map() const {
    giwa::block_map m{.heads = static_cast<int>(heads),
                      .queries = static_cast<int>(queries),
                      .keys = static_cast<int>(keys),
                      .block_queries = static_cast<int>(block_queries),
                      .block_keys = static_cast<int>(block_keys),
                      .by_keys = order >= 0};
    m.words = words;
    return m;
  }
  giwa::attention_problem sizes() const { return {1, queries, keys, heads, heads, 128, 128, 2}; }
};

namespace {

[[maybe_unused]] constexpr int size = 128;
using element = giwa::fp16;

template <class T>
giwa::tensor_view<T, 4> of(const void* data, long long length, long long heads, bool heads_first = false) {
  T* const first = static_cast<T*>(const_cast<void*>(data));
  if (!heads_first) return {first, {1, length, heads, size}};
  return {first, {1, length, heads, size}, {length * heads * size, size, length * size, 1}};
}
[[maybe_unused]] giwa::tensor_view<float, 3> lse_of(const sparse_call& c) { return {c.lse, {1, c.heads, c.queries}}; }

[[maybe_unused]] long long code_of(const giwa::status& s) {
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<long long>(s.code);
}

template <class T = element, class Mask>
[[maybe_unused]] giwa::status forward(const sparse_call& c, const Mask& mask) {
  giwa::attention_options options;
  if (c.lse != nullptr) options.lse = lse_of(c);
  options.workspace = {c.workspace, {c.workspace_bytes}};
  const bool first = c.heads_first != 0;
  return giwa::attention_forward<size>(c.stream, of<const T>(c.q, c.queries, c.heads, first),
                                       of<const T>(c.k, c.keys, c.heads, first),
                                       of<const T>(c.v, c.keys, c.heads, first), of<T>(c.o, c.queries, c.heads, first),
                                       mask, giwa::plain_score{}, options);
}
template <class Mask, class Call>
[[maybe_unused]] auto backward(const sparse_call& c, const Mask& mask, const Call& call) {
  giwa::attention_backward_options options;
  options.lse = lse_of(c);
  options.workspace = {c.workspace, {c.workspace_bytes}};
  options.any_order = c.order == 1;
  return call(of<const element>(c.q, c.queries, c.heads), of<const element>(c.k, c.keys, c.heads),
              of<const element>(c.v, c.keys, c.heads), of<const element>(c.o, c.queries, c.heads),
              of<const element>(c.dout, c.queries, c.heads), of<element>(c.dq, c.queries, c.heads),
              of<element>(c.dk, c.keys, c.heads), of<element>(c.dv, c.keys, c.heads), mask, giwa::plain_score{},
              options);
}

}  // namespace

#if !defined(GIWA_BENCH_PART)
#define GIWA_BENCH_PART 0
#endif
#define GIWA_BENCH_HAS(part) (GIWA_BENCH_PART == 0 || GIWA_BENCH_PART == part)

// Each answers 0 for success.
#if GIWA_BENCH_HAS(1)
extern "C" long long giwa_sparse_workspace(const sparse_call* c) { return giwa::workspace_bytes(c->sizes()); }
extern "C" long long giwa_sparse_forward(const sparse_call* c) {
  if (c->words == nullptr) return code_of(forward(*c, giwa::full{}));
  return code_of(forward(*c, giwa::block_sparse{c->map()}));
}
#endif
#if GIWA_BENCH_HAS(2)
extern "C" long long giwa_sparse_backward_workspace(const sparse_call* c) {
  return backward(*c, giwa::full{}, [](const auto&... x) { return giwa::workspace_bytes(x...); });
}
extern "C" long long giwa_sparse_backward(const sparse_call* c) {
  const auto call = [&](const auto&... x) { return giwa::attention_backward<size>(c->stream, x...); };
  if (c->words == nullptr) return code_of(backward(*c, giwa::full{}, call));
  return code_of(backward(*c, giwa::block_sparse{c->map()}, call));
}
#endif
#if GIWA_BENCH_HAS(3)
extern "C" long long giwa_map_bytes(const sparse_call* c) { return c->map().bytes(); }
extern "C" long long giwa_map_of_lists(const sparse_call* c) {
  const giwa::block_map m = c->map();
  const giwa::block_list full{{c->counts, {1, c->heads, m.rows()}}, {c->indices, {1, c->heads, m.rows(), c->capacity}}};
  return code_of(make_block_map(c->stream, giwa::block_lists{.full = full}, m));
}
extern "C" long long giwa_map_of_bools(const sparse_call* c) {
  const giwa::tensor_view<const bool, 4> visible(c->visible, {1, c->heads, c->queries, c->keys});
  return code_of(make_block_map(c->stream, visible, c->map()));
}
#endif
#if GIWA_BENCH_HAS(4)
extern "C" long long giwa_sparse_forward_bf16(const sparse_call* c) {
  return code_of(forward<giwa::bf16>(*c, giwa::block_sparse{c->map()}));
}
#endif
