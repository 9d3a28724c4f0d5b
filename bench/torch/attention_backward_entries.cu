// SPDX-License-Identifier: MIT
// What attention_backward.py calls: attention and its gradients as C functions. GIWA_BENCH_USUAL_SIZES has only fp16 of head
// sizes 64, 128 and 256, GIWA_BENCH_BF16 only bf16 of these, GIWA_BENCH_FP32 only fp32, GIWA_BENCH_OTHER_CASES the rest,
// GIWA_BENCH_BIAS of the rest only biases.
// GIWA_BENCH_HOW is an accuracy of fp32.
#include <giwa/attention.cuh>
#include <giwa/attention_backward.cuh>

#include <cstdio>
#include <type_traits>

#if !defined(GIWA_BENCH_HOW)
#define GIWA_BENCH_HOW giwa::fp32
#endif

// One call, as attention_backward.py lays it out. q, o, dout and dq (batch, length, heads, head size); k, v, dk and dv with
// kv_heads; lse (batch, heads, length); all contiguous. element: 0 fp16, 1 bf16, 2 fp32. kind: 0 full, 1 causal, 2 softcap, 3
// alibi and causal, 4 a window, 5 a bias with its gradient, (batch, heads, length, length) both, 6 dropout, 7 causal and packed,
// `sequences` at `offsets`, the longest of `longest`; 8 and 9 are 0 and 1 with a score modifier that does nothing; 10 a bias of each
// key, of_keys (batch, length), and a bias that sequences share, (heads, length, length), with its gradient in fp32; 11 alibi and
// causal with the gradient of the slopes, dbias (heads) in fp32.
// order: 0 fixed, 1 any, 2 fixed and query heads split. Kinds read their own of cap, slopes, window, bias and dbias.
struct backward_call {
  long long kind, element, batch, length, heads, kv_heads, head_size, window, order, sequences, longest;
  double cap;
  const void *q, *k, *v, *dout, *bias;
  void *o, *dq, *dk, *dv, *dbias;
  float *lse, *slopes;
  unsigned char *forward_workspace, *workspace;
  long long workspace_bytes;
  cudaStream_t stream;
  const int* offsets;
  const void* of_keys;

  giwa::attention_problem sizes() const {
    if (kind == 7) return {sequences, -1, -1, heads, kv_heads, head_size, head_size, 2, length, length};
    return {batch, length, length, heads, kv_heads, head_size, head_size, element == 2 ? 4 : 2};
  }
};

namespace {

template <class T>
using view = giwa::tensor_view<T, 4>;

struct unchanged_score {
  template <class Number>
  GIWA_HOST_DEVICE Number operator()(Number score, giwa::attention_coord) const {
    return score;
  }
};

template <class T, int HeadSize, class Mask, class Score = giwa::plain_score>
struct pass {
  const backward_call& c;
  Mask mask;
  Score score{};

  template <class U>
  view<U> of(const void* data, long long heads) const {
    return {static_cast<U*>(const_cast<void*>(data)), {c.batch, c.length, heads, HeadSize}};
  }
  view<const T> queries(const void* data) const { return of<const T>(data, c.heads); }
  view<const T> keys(const void* data) const { return of<const T>(data, c.kv_heads); }
  giwa::tensor_view<float, 3> lse() const { return {c.lse, {c.batch, c.heads, c.length}}; }

  giwa::status forward() const {
    giwa::attention_options options;
    options.lse = lse();
    options.workspace = {c.forward_workspace, {giwa::workspace_bytes(c.sizes())}};
    return giwa::attention_forward<HeadSize, GIWA_BENCH_HOW>(c.stream, queries(c.q), keys(c.k), keys(c.v),
                                                             of<T>(c.o, c.heads), mask, score, options);
  }
  giwa::status backward() const {
    giwa::attention_backward_options options;
    options.lse = lse();
    options.workspace = {c.workspace, {c.workspace_bytes}};
    options.any_order = c.order == 1, options.split_heads = c.order == 2;
    return giwa::attention_backward<HeadSize, GIWA_BENCH_HOW>(
        c.stream, queries(c.q), keys(c.k), keys(c.v), queries(c.o), queries(c.dout), of<T>(c.dq, c.heads),
        of<T>(c.dk, c.kv_heads), of<T>(c.dv, c.kv_heads), mask, score, options);
  }
  long long workspace_bytes() const {
    return giwa::detail::backward_workspace_bytes(c.sizes(), score, 90, c.order == 1, c.order == 2);
  }
};

#if defined(GIWA_BENCH_OTHER_CASES)
// Packed sequences, causal.
struct packed_pass {
  using T = giwa::fp16;
  const backward_call& c;

  template <class U>
  giwa::tensor_view<U, 3> of(const void* data, long long heads) const {
    return {static_cast<U*>(const_cast<void*>(data)), {c.length, heads, 128}};
  }
  giwa::sequences at() const { return {c.offsets, c.offsets, c.sequences, c.longest}; }
  giwa::tensor_view<float, 3> lse() const { return {c.lse, {1, c.heads, c.length}}; }
  giwa::status forward() const {
    giwa::attention_options options;
    options.lse = lse();
    options.sequences = at();
    options.workspace = {c.forward_workspace, {giwa::workspace_bytes(c.sizes())}};
    return giwa::attention_forward<128>(c.stream, of<const T>(c.q, c.heads), of<const T>(c.k, c.kv_heads),
                                        of<const T>(c.v, c.kv_heads), of<T>(c.o, c.heads), giwa::causal{}, options);
  }
  giwa::status backward() const {
    giwa::attention_backward_options options;
    options.lse = lse();
    options.sequences = at();
    options.workspace = {c.workspace, {c.workspace_bytes}};
    options.any_order = c.order == 1, options.split_heads = c.order == 2;
    return giwa::attention_backward<128>(c.stream, of<const T>(c.q, c.heads), of<const T>(c.k, c.kv_heads),
                                         of<const T>(c.v, c.kv_heads), of<const T>(c.o, c.heads),
                                         of<const T>(c.dout, c.heads), of<T>(c.dq, c.heads), of<T>(c.dk, c.kv_heads),
                                         of<T>(c.dv, c.kv_heads), giwa::causal{}, options);
  }
  long long workspace_bytes() const {
    return giwa::detail::backward_workspace_bytes(c.sizes(), 90, c.order == 1, c.order == 2);
  }
};
#endif

// run(pass) for the pass that the call names, or -1 if this library does not have it.
template <class T, int HeadSize, class Run>
long long of_size(const backward_call& c, const Run& run) {
  if (c.kind == 0) return run(pass<T, HeadSize, giwa::full>{c, {}});
  if (c.kind == 1) return run(pass<T, HeadSize, giwa::causal>{c, {}});
  return -1;
}

#if defined(GIWA_BENCH_OTHER_CASES) || defined(GIWA_BENCH_BIAS)
// A bias with its gradient, or of keys and shared.
template <int HeadSize, class Run>
long long of_bias(const backward_call& c, const Run& run) {
  using giwa::fp16;
  const giwa::index<4> sizes{c.kind == 5 ? c.batch : 1, c.heads, c.length, c.length};
  const view<const fp16> values(static_cast<const fp16*>(c.bias), sizes);
  if (c.kind == 5) {
    const giwa::bias_with_gradient bias(values, view<fp16>(static_cast<fp16*>(c.dbias), sizes));
    return run(pass<fp16, HeadSize, giwa::full, giwa::bias_with_gradient<fp16, fp16>>{c, {}, bias});
  }
  const giwa::bias of_keys(view<const fp16>(static_cast<const fp16*>(c.of_keys), {c.batch, 1, 1, c.length}));
  const giwa::then both(of_keys, giwa::bias_with_gradient(values, view<float>(static_cast<float*>(c.dbias), sizes)));
  return run(pass<fp16, HeadSize, giwa::full, std::remove_const_t<decltype(both)>>{c, {}, both});
}
#endif

template <class Run>
long long with_pass(const backward_call& c, const Run& run) {
#if defined(GIWA_BENCH_OTHER_CASES) || defined(GIWA_BENCH_BIAS)
  if (c.element == 0 && (c.kind == 5 || c.kind == 10)) {
    if (c.head_size == 128) return of_bias<128>(c, run);
    if (c.head_size == 64) return of_bias<64>(c, run);
    if (c.head_size == 32) return of_bias<32>(c, run);
  }
  if (c.element == 0 && c.kind == 11 && c.head_size == 128) {
    const giwa::tensor_view<float, 1> gradient(static_cast<float*>(c.dbias), {c.heads});
    return run(pass<giwa::fp16, 128, giwa::causal, giwa::alibi_with_gradient>{c, {}, {c.slopes, gradient}});
  }
#endif
#if defined(GIWA_BENCH_FP32)
  if (c.element == 2 && c.head_size == 64) return of_size<float, 64>(c, run);
  if (c.element == 2 && c.head_size == 128) return of_size<float, 128>(c, run);
#endif
#if defined(GIWA_BENCH_BF16)
  if (c.element == 1 && c.head_size == 64) return of_size<giwa::bf16, 64>(c, run);
  if (c.element == 1 && c.head_size == 128) return of_size<giwa::bf16, 128>(c, run);
  if (c.element == 1 && c.head_size == 256) return of_size<giwa::bf16, 256>(c, run);
#endif
#if defined(GIWA_BENCH_USUAL_SIZES)
  if (c.element == 0 && c.kind < 2) {
    if (c.head_size == 64) return of_size<giwa::fp16, 64>(c, run);
    if (c.head_size == 128) return of_size<giwa::fp16, 128>(c, run);
    if (c.head_size == 256) return of_size<giwa::fp16, 256>(c, run);
  }
#endif
#if defined(GIWA_BENCH_OTHER_CASES)
  using giwa::bf16, giwa::fp16;
  if (c.element == 1 && c.head_size == 128) return of_size<bf16, 128>(c, run);
  if (c.element == 0 && c.head_size == 96) return of_size<fp16, 96>(c, run);
  if (c.element == 0 && c.head_size == 192) return of_size<fp16, 192>(c, run);
  if (c.element != 0 || c.head_size != 128) return -1;
  switch (c.kind) {
    case 2: return run(pass<fp16, 128, giwa::full, giwa::softcap>{c, {}, giwa::softcap{static_cast<float>(c.cap)}});
    case 3: return run(pass<fp16, 128, giwa::causal, giwa::alibi>{c, {}, {c.slopes}});
    case 4: return run(pass<fp16, 128, giwa::sliding_window>{c, giwa::sliding_window{static_cast<int>(c.window)}});
    case 6: return run(pass<fp16, 128, giwa::full, giwa::dropout<>>{c, {}, giwa::dropout(0.1f, 5)});
    case 7: return run(packed_pass{c});
    case 8: return run(pass<fp16, 128, giwa::full, unchanged_score>{c, {}});
    case 9: return run(pass<fp16, 128, giwa::causal, unchanged_score>{c, {}});
    default: break;
  }
#endif
  return -1;
}

long long code_of(const giwa::status& s) {
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<long long>(s.code);
}

}  // namespace

// Each answers -1 for a case that the library does not have; the first two 0 for success.
extern "C" long long giwa_forward(const backward_call* c) {
  return with_pass(*c, [](const auto& p) { return code_of(p.forward()); });
}
extern "C" long long giwa_backward(const backward_call* c) {
  return with_pass(*c, [](const auto& p) { return code_of(p.backward()); });
}
extern "C" long long giwa_backward_workspace(const backward_call* c) {
  return with_pass(*c, [](const auto& p) { return p.workspace_bytes(); });
}
extern "C" long long giwa_forward_workspace(const backward_call* c) { return giwa::workspace_bytes(c->sizes()); }
