// SPDX-License-Identifier: MIT
// What attention.py calls on a GPU: attention of one element type and several head sizes, as a C function.
#include <giwa/attention.cuh>

#include <cstdio>

#if !defined(GIWA_BENCH_ELEMENT)
#define GIWA_BENCH_ELEMENT giwa::fp16
#endif

#if !defined(GIWA_BENCH_SIZES)
#define GIWA_BENCH_SIZES 40, 64, 80, 96, 128, 160, 192, 256
#endif

// q and o (batch, queries, heads, head size), k and v (batch, keys, kv_heads, head size); all contiguous. Answers 0 for success.
extern "C" int giwa_attention(int causal, const void* q, const void* k, const void* v, void* o, long long batch,
                              long long queries, long long keys, long long heads, long long kv_heads,
                              long long head_size, void* workspace, cudaStream_t stream) {
  using element = GIWA_BENCH_ELEMENT;
  using input = giwa::tensor_view<const element, 4>;
  const auto inputs = [&](const void* data, long long length, long long h) {
    return input(static_cast<const element*>(data), {batch, length, h, head_size});
  };
  const giwa::tensor_view<element, 4> out(static_cast<element*>(o), {batch, queries, heads, head_size});
  giwa::attention_options options;
  if (workspace != nullptr) options.workspace = {static_cast<unsigned char*>(workspace), {giwa::workspace_bytes({})}};
  const auto run = [&](const auto& mask) {
    return giwa::attention_forward<giwa::head_sizes<GIWA_BENCH_SIZES>>(
        stream, inputs(q, queries, heads), inputs(k, keys, kv_heads), inputs(v, keys, kv_heads), out, mask,
        giwa::plain_score{}, options);
  };
  const giwa::status s = causal != 0 ? run(giwa::causal{}) : run(giwa::full{});
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<int>(s.code);
}
