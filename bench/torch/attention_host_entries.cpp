// SPDX-License-Identifier: MIT
// What attention.py calls on the CPU: attention in fp32, head sizes 64 and 128, as a C function.
#include <giwa/base/throw.hpp>
#include <giwa/host.hpp>

#include <cstdio>

// q, k, v and o (batch, length, heads, head size), contiguous. Answers 0 for success.
extern "C" int giwa_attention_host(int causal, const float* q, const float* k, const float* v, float* o,
                                   long long batch, long long length, long long heads, long long head_size) {
  const giwa::index<4> shape{batch, length, heads, head_size};
  const auto run = [&](const auto& mask) {
    using input = giwa::tensor_view<const float, 4>;
    return giwa::attention_forward<giwa::head_sizes<64, 128>>(
        giwa::host, input(q, shape), input(k, shape), input(v, shape), giwa::tensor_view<float, 4>(o, shape), mask);
  };
  const giwa::status s = causal != 0 ? run(giwa::causal{}) : run(giwa::full{});
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<int>(s.code);
}
