// SPDX-License-Identifier: MIT
// What same_code.py compares: attention over head sizes, precisions, masks and score modifiers; PART is 0, 1 or 2.
#include <giwa/attention.cuh>

using half_view = giwa::tensor_view<__half, 4>;
using bf16_view = giwa::tensor_view<__nv_bfloat16, 4>;
using float_view = giwa::tensor_view<float, 4>;

struct bits_mask {
  const int* bits;
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const { return bits[c.key] > c.query % 7; }
};
struct bias_score {
  const float* bias;
  GIWA_HOST_DEVICE float operator()(float s, giwa::attention_coord c) const {
    return s + bias[c.head] * static_cast<float>(c.key - c.diagonal);
  }
};

giwa::status run(cudaStream_t s, half_view x, bf16_view b, float_view y, giwa::sequences packed,
                 giwa::tensor_view<__half, 3> z) {
  using giwa::attention_forward, giwa::causal;
  const giwa::status states[] = {
#if PART == 0
    attention_forward<64>(s, x, x, x, x),
    attention_forward<64>(s, x, x, x, x, causal{}),
    attention_forward<128>(s, x, x, x, x),
    attention_forward<128>(s, x, x, x, x, causal{}),
    attention_forward<256>(s, x, x, x, x),
    attention_forward<256>(s, x, x, x, x, causal{}),
#elif PART == 1
    attention_forward<128>(s, x, x, x, x, bits_mask{}, bias_score{}),
    attention_forward<64>(s, z, z, z, z, causal{}, {.sequences = packed}),
    attention_forward<giwa::head_sizes<192, 128>>(s, b, b, b, b, causal{}, giwa::softcap{30.f}),
    attention_forward<80>(s, x, x, x, x),
    attention_forward<256>(s, b, b, b, b, bits_mask{}, bias_score{}),
#else
    attention_forward<64>(s, y, y, y, y),
    attention_forward<128>(s, y, y, y, y, causal{}),
    attention_forward<256>(s, y, y, y, y),
    attention_forward<128, giwa::tf32>(s, y, y, y, y, causal{}),
    attention_forward<256, giwa::tf32>(s, y, y, y, y),
#endif
  };
  for (const giwa::status& state : states)
    if (!state.ok()) return state;
  static_cast<void>(x), static_cast<void>(b), static_cast<void>(y), static_cast<void>(packed), static_cast<void>(z);
  return {};
}
