// SPDX-License-Identifier: MIT
// What attention.py calls on the CPU: attention and its gradients in fp32, head sizes 64 and 128, as C functions.
#include <giwa/base/throw.hpp>
#include <giwa/host.hpp>

#include <cstdio>

namespace {

using input = giwa::tensor_view<const float, 4>;
using output = giwa::tensor_view<float, 4>;

template <class Call>
int run(int causal, const Call& call) {
  const giwa::status s = causal != 0 ? call(giwa::causal{}) : call(giwa::full{});
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<int>(s.code);
}

}  // namespace

// All tensors (batch, length, heads, head size), lse (batch, heads, length) or null; contiguous. Each answers 0 for success.
extern "C" int giwa_attention_host(int causal, const float* q, const float* k, const float* v, float* o, float* lse,
                                   long long batch, long long length, long long heads, long long head_size) {
  const giwa::index<4> shape{batch, length, heads, head_size};
  giwa::attention_options options;
  if (lse != nullptr) options.lse = {lse, {batch, heads, length}};
  return run(causal, [&](const auto& mask) {
    return giwa::choose_head_size<64, 128>(head_size, [&](auto size) {
      return giwa::attention_forward<size>(giwa::host, input(q, shape), input(k, shape), input(v, shape),
                                           output(o, shape), mask, options);
    });
  });
}
extern "C" int giwa_attention_host_backward(int causal, const float* q, const float* k, const float* v, const float* o,
                                            const float* lse, const float* dout, float* dq, float* dk, float* dv,
                                            long long batch, long long length, long long heads, long long head_size) {
  const giwa::index<4> shape{batch, length, heads, head_size};
  return run(causal, [&](const auto& mask) {
    return giwa::choose_head_size<64, 128>(head_size, [&](auto size) {
      return giwa::attention_backward<size>(giwa::host, input(q, shape), input(k, shape), input(v, shape),
                                            input(o, shape), input(dout, shape), output(dq, shape), output(dk, shape),
                                            output(dv, shape), mask, {.lse = {lse, {batch, heads, length}}});
    });
  });
}
