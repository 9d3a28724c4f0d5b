// SPDX-License-Identifier: MIT
// What attention.py and accuracy.py call on a GPU: attention of one element type and several head sizes, as C functions. For fp32
// GIWA_BENCH_HOW is giwa::fp32, fp32_exact or tf32; for the others GIWA_BENCH_NO_VARIANTS leaves FlexAttention's cases out,
// GIWA_BENCH_USUAL_SIZES or GIWA_BENCH_OTHER_SIZES some head sizes. GIWA_BENCH_FORMS has only what peers/measure.py calls besides:
// head size 512, head size 192 with values of 128, and packed sequences. GIWA_BENCH_E4M3 has q, k and v in e4m3 and o in fp16, also
// with scales; GIWA_BENCH_SIZES may give the head sizes.
#include <giwa/attention.cuh>

#include <cstdio>

#if defined(GIWA_BENCH_HOW)
#define GIWA_BENCH_FP32
#define GIWA_BENCH_ELEMENT giwa::fp32
#else
#define GIWA_BENCH_HOW giwa::fp32
#endif

#if defined(GIWA_BENCH_E4M3)
#define GIWA_BENCH_ELEMENT giwa::e4m3
#define GIWA_BENCH_OUTPUT giwa::fp16
#define GIWA_BENCH_NO_VARIANTS
#endif

#if !defined(GIWA_BENCH_ELEMENT)
#define GIWA_BENCH_ELEMENT giwa::fp16
#endif
#if !defined(GIWA_BENCH_OUTPUT)
#define GIWA_BENCH_OUTPUT GIWA_BENCH_ELEMENT
#endif

// Names, as nvcc hands a list with commas on in different ways.
#if defined(GIWA_BENCH_SIZES)
#elif defined(GIWA_BENCH_E4M3)
#define GIWA_BENCH_SIZES 64, 96, 128, 256
#elif defined(GIWA_BENCH_USUAL_SIZES) || defined(GIWA_BENCH_FP32)
#define GIWA_BENCH_SIZES 64, 128, 256
#elif defined(GIWA_BENCH_OTHER_SIZES)
#define GIWA_BENCH_SIZES 40, 80, 96, 128, 160, 192
#elif defined(GIWA_BENCH_FORMS)
#define GIWA_BENCH_SIZES 512
#define GIWA_BENCH_NO_VARIANTS
#else
#define GIWA_BENCH_SIZES 40, 64, 80, 96, 128, 160, 192, 256
#endif

namespace {

struct problem {
  const void *q, *k, *v;
  void* o;
  long long batch, queries, keys, heads, kv_heads, head_size;
  void* workspace;
  cudaStream_t stream;
  giwa::attention_scales scales = {};

  giwa::attention_problem sizes() const {
    return {batch, queries, keys, heads, kv_heads, head_size, head_size, giwa::int64{sizeof(GIWA_BENCH_ELEMENT)}};
  }
};

template <int... Sizes, class Mask, class Score = giwa::plain_score>
int attend(const problem& p, const Mask& mask, const Score& score = {}) {
  using element = GIWA_BENCH_ELEMENT;
  using output = GIWA_BENCH_OUTPUT;
  using input = giwa::tensor_view<const element, 4>;
  const auto inputs = [&](const void* data, long long length, long long h) {
    return input(static_cast<const element*>(data), {p.batch, length, h, p.head_size});
  };
  const giwa::tensor_view<output, 4> out(static_cast<output*>(p.o), {p.batch, p.queries, p.heads, p.head_size});
  giwa::attention_options options;
  options.scales = p.scales;
  if (p.workspace != nullptr)
    options.workspace = {static_cast<unsigned char*>(p.workspace), {giwa::workspace_bytes(p.sizes())}};
  const giwa::status s = giwa::choose_head_size<Sizes...>(p.head_size, [&](auto head_size) {
    return giwa::attention_forward<head_size, GIWA_BENCH_HOW>(
        p.stream, inputs(p.q, p.queries, p.heads), inputs(p.k, p.keys, p.kv_heads), inputs(p.v, p.keys, p.kv_heads),
        out, mask, score, options);
  });
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<int>(s.code);
}

}  // namespace

// q and o (batch, queries, heads, head size), k and v (batch, keys, kv_heads, head size); all contiguous. Answers 0 for success.
extern "C" int giwa_attention(int causal, const void* q, const void* k, const void* v, void* o, long long batch,
                              long long queries, long long keys, long long heads, long long kv_heads,
                              long long head_size, void* workspace, cudaStream_t stream) {
  const problem p{q, k, v, o, batch, queries, keys, heads, kv_heads, head_size, workspace, stream};
  return causal != 0 ? attend<GIWA_BENCH_SIZES>(p, giwa::causal::bottom_right)
                     : attend<GIWA_BENCH_SIZES>(p, giwa::full{});
}

// What the workspace of such a call has, in bytes.
extern "C" long long giwa_workspace_bytes(long long batch, long long queries, long long keys, long long heads,
                                          long long kv_heads, long long head_size) {
  return giwa::workspace_bytes(
      problem{nullptr, nullptr, nullptr, nullptr, batch, queries, keys, heads, kv_heads, head_size, nullptr, nullptr}
          .sizes());
}

#if defined(GIWA_BENCH_E4M3)
// The same with scales of q and k (batch, groups, heads), for groups of q_rows and k_rows rows or 0 for all; of v (batch, 1, kv_heads)
// and of its channels (kv_heads, head size). A null pointer is a scale of 1.
extern "C" int giwa_attention_scaled(int causal, const void* q, const void* k, const void* v, void* o, long long batch,
                                     long long queries, long long keys, long long heads, long long kv_heads,
                                     long long head_size, void* workspace, const float* of_q, int q_rows,
                                     const float* of_k, int k_rows, const float* of_v, const float* of_channels,
                                     cudaStream_t stream) {
  problem p{q, k, v, o, batch, queries, keys, heads, kv_heads, head_size, workspace, stream};
  const auto groups = [](long long rows, int of_group) { return of_group == 0 ? 1 : (rows + of_group - 1) / of_group; };
  if (of_q != nullptr) p.scales.q = {of_q, {batch, groups(queries, q_rows), heads}}, p.scales.q_rows = q_rows;
  if (of_k != nullptr) p.scales.k = {of_k, {batch, groups(keys, k_rows), kv_heads}}, p.scales.k_rows = k_rows;
  if (of_v != nullptr) p.scales.v = {of_v, {batch, 1, kv_heads}};
  if (of_channels != nullptr) p.scales.v_channel = {of_channels, {kv_heads, head_size}};
  return causal != 0 ? attend<GIWA_BENCH_SIZES>(p, giwa::causal::bottom_right)
                     : attend<GIWA_BENCH_SIZES>(p, giwa::full{});
}
#endif

#if !defined(GIWA_BENCH_FP32) && !defined(GIWA_BENCH_NO_VARIANTS)
// The same of head size 128, with scores and masks that FlexAttention is asked for: 0 plain, 1 causal, 2 softcap, 3 alibi and
// causal, 4 a window. A kind reads its own of cap, slopes (heads, on the GPU) and window (the query's own key is one of them).
extern "C" int giwa_attention_variant(int kind, float cap, const float* slopes, int window, const void* q,
                                      const void* k, const void* v, void* o, long long batch, long long queries,
                                      long long keys, long long heads, long long kv_heads, long long head_size,
                                      void* workspace, cudaStream_t stream) {
  const problem p{q, k, v, o, batch, queries, keys, heads, kv_heads, head_size, workspace, stream};
  switch (kind) {
    case 0: return attend<128>(p, giwa::full{});
    case 1: return attend<128>(p, giwa::causal{});
    case 2: return attend<128>(p, giwa::full{}, giwa::softcap{cap});
    case 3: return attend<128>(p, giwa::causal{}, giwa::alibi{slopes});
    case 4: return attend<128>(p, giwa::sliding_window{window});
    default: return -1;
  }
}
#endif

#if defined(GIWA_BENCH_FORMS)
namespace {

using element = GIWA_BENCH_ELEMENT;

int code_of(const giwa::status& s) {
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<int>(s.code);
}

giwa::attention_options with_workspace(void* workspace, const giwa::attention_problem& sizes) {
  giwa::attention_options options;
  options.workspace = {static_cast<unsigned char*>(workspace), {giwa::workspace_bytes(sizes)}};
  return options;
}

giwa::attention_problem packed_sizes(long long sequences, long long rows, long long heads, long long kv_heads) {
  return {sequences, -1, -1, heads, kv_heads, 128, 128, giwa::int64{sizeof(element)}, rows, rows};
}

}  // namespace

// As giwa_attention, with head size 192 of q and k, and 128 of v and o. The workspace is that of head size 192.
extern "C" int giwa_attention_192_128(int causal, const element* q, const element* k, const element* v, element* o,
                                      long long batch, long long queries, long long keys, long long heads,
                                      long long kv_heads, void* workspace, cudaStream_t stream) {
  const auto options =
      with_workspace(workspace, {batch, queries, keys, heads, kv_heads, 192, 128, giwa::int64{sizeof(element)}});
  const auto run = [&](const auto& mask) {
    return code_of(giwa::attention_forward<giwa::head_sizes<192, 128>>(
        stream, giwa::tensor_view<const element, 4>(q, {batch, queries, heads, 192}),
        giwa::tensor_view<const element, 4>(k, {batch, keys, kv_heads, 192}),
        giwa::tensor_view<const element, 4>(v, {batch, keys, kv_heads, 128}),
        giwa::tensor_view<element, 4>(o, {batch, queries, heads, 128}), mask, options));
  };
  return causal != 0 ? run(giwa::causal::bottom_right) : run(giwa::full{});
}

// Packed sequences of head size 128, causal: q and o (rows, heads, 128), k and v (rows, kv_heads, 128). Sequence i has the rows
// offsets[i] to offsets[i + 1], `longest` at most.
extern "C" int giwa_attention_packed(const element* q, const element* k, const element* v, element* o,
                                     const int* offsets, long long sequences, long long rows, long long heads,
                                     long long kv_heads, long long longest, void* workspace, cudaStream_t stream) {
  using input = giwa::tensor_view<const element, 3>;
  auto options = with_workspace(workspace, packed_sizes(sequences, rows, heads, kv_heads));
  options.sequences = {offsets, offsets, sequences, longest};
  return code_of(giwa::attention_forward<128>(
      stream, input(q, {rows, heads, 128}), input(k, {rows, kv_heads, 128}), input(v, {rows, kv_heads, 128}),
      giwa::tensor_view<element, 3>(o, {rows, heads, 128}), giwa::causal{}, options));
}

extern "C" long long giwa_packed_workspace_bytes(long long sequences, long long rows, long long heads,
                                                 long long kv_heads) {
  return giwa::workspace_bytes(packed_sizes(sequences, rows, heads, kv_heads));
}
#endif
