// SPDX-License-Identifier: MIT
// What attention.py calls on a GPU: attention of one element type, head sizes 64, 128 and 256, as a C function.
#include <giwa/attention.cuh>

#include <cstdio>

#if !defined(GIWA_BENCH_ELEMENT)
#define GIWA_BENCH_ELEMENT giwa::fp16
#endif

#if !defined(GIWA_BENCH_SIZES)
#define GIWA_BENCH_SIZES 64, 128, 256
#endif

// q and o (batch, length, heads, head size), k and v the same with kv_heads; all contiguous. Answers 0 for success.
extern "C" int giwa_attention(int causal, const void* q, const void* k, const void* v, void* o, long long batch,
                              long long length, long long heads, long long kv_heads, long long head_size,
                              void* workspace, cudaStream_t stream) {
  using element = GIWA_BENCH_ELEMENT;
  using input = giwa::tensor_view<const element, 4>;
  const auto inputs = [&](const void* data, long long h) {
    return input(static_cast<const element*>(data), {batch, length, h, head_size});
  };
  const giwa::tensor_view<element, 4> out(static_cast<element*>(o), {batch, length, heads, head_size});
  giwa::attention_options options;
  if (workspace != nullptr) options.workspace = {static_cast<unsigned char*>(workspace), {giwa::workspace_bytes({})}};
  const auto run = [&](const auto& mask) {
    return giwa::attention_forward<giwa::head_sizes<GIWA_BENCH_SIZES>>(
        stream, inputs(q, heads), inputs(k, kv_heads), inputs(v, kv_heads), out, mask, giwa::plain_score{}, options);
  };
  const giwa::status s = causal != 0 ? run(giwa::causal{}) : run(giwa::full{});
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<int>(s.code);
}
