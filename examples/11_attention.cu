// SPDX-License-Identifier: MIT
// Attention by one call on the GPU or the CPU: causal, in fp16, with the log-sum-exp of each row.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/11_attention.cu -o 11_attention
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
//
// What it teaches: attention_forward<head size>(where, q, k, v, o, mask, score, options) takes views with any strides
// but that of the last dimension, which must be 1, so tensors need no copy. Here q, k and v are the three parts of one
// projection, as a network computes them. The lse output is what merge_attention needs to merge the attention of two
// sets of keys, and what a backward pass needs. For a row that sees one key, it is that key's score.
//
// Expected output, with the time of your machine:
//   attention of 2 x 1000 tokens, 8 heads of 64: … ms
//   first row: o is the first value, lse is the first score
//   device: NVIDIA H200
#include <giwa/attention.cuh>
#include <giwa/giwa.cuh>
#include <giwa/host.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

using giwa::fp16, giwa::int64, giwa::tensor_view, giwa::throw_if_failed;

constexpr int64 batch = 2, tokens = 1000, heads = 8, head_size = 64, width = heads * head_size;

// qkv is (batch, tokens, 3, heads, head_size), o (batch, tokens, heads, head_size), lse (batch, heads, tokens).
template <class Where>
giwa::status attention(const Where& where, const fp16* qkv, fp16* o, float* lse) {
  const auto part = [&](int i) {
    return tensor_view<const fp16, 4>{
        qkv + i * width, {batch, tokens, heads, head_size}, {tokens * 3 * width, 3 * width, head_size, 1}};
  };
  return giwa::attention_forward<head_size>(where, part(0), part(1), part(2),
                                            tensor_view<fp16, 4>{o, {batch, tokens, heads, head_size}}, giwa::causal{},
                                            {.lse = {lse, {batch, heads, tokens}}});
}

int main() try {
  std::vector<fp16> qkv(batch * tokens * 3 * width), o(batch * tokens * width);
  std::vector<float> lse(batch * heads * tokens);
  for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = giwa::convert<fp16>{}(std::sin(0.1f * static_cast<float>(i)));

  const giwa::device_choice choice = giwa::choose_device();
  double ms = 0;
  if (choice.on_gpu()) {
    const giwa::stream stream = throw_if_failed(giwa::stream::create());
    const auto in = throw_if_failed(giwa::to_device(stream, qkv));
    auto out = throw_if_failed(giwa::device_array<fp16>::allocate(stream, batch * tokens * width));
    auto sums = throw_if_failed(giwa::device_array<float>::allocate(stream, batch * heads * tokens));
    const auto call = [&] { return attention(stream, in.data(), out.data(), sums.data()); };  // asynchronous
    ms = throw_if_failed(giwa::time_on(stream, call)).median;
    throw_if_failed(giwa::to_host(stream, out, o));  // waits
    throw_if_failed(giwa::to_host(stream, sums, lse));
  } else {
    const auto start = std::chrono::steady_clock::now();
    throw_if_failed(attention(giwa::host, qkv.data(), o.data(), lse.data()));
    ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  std::printf("attention of %lld x %lld tokens, %lld heads of %lld: %.3f ms\n", static_cast<long long>(batch),
              static_cast<long long>(tokens), static_cast<long long>(heads), static_cast<long long>(head_size), ms);

  double off = 0, score = 0;  // of head 0
  const giwa::convert<double> number{};
  for (std::size_t i = 0; i < head_size; ++i) {
    score += number(qkv[i]) * number(qkv[width + i]) / std::sqrt(double{head_size});
    off = std::fmax(off, std::abs(number(o[i]) - number(qkv[2 * width + i])));
  }
  const bool right = off == 0 && std::abs(score - static_cast<double>(lse[0])) < 1e-4;
  std::printf("first row: %s\n", right ? "o is the first value, lse is the first score" : "WRONG");
  std::printf("device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
