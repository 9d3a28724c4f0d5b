// SPDX-License-Identifier: MIT
// The gain of fusion: attention as two matrix products and a softmax, compared with one kernel; the bytes that each moves.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/17_unfused_attention.cu -o 17_unfused_attention
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: matmul/mma.cuh, matmul/naive.cuh, matmul/problem.cuh, support/attention_check.cuh,
//                        support/attention_compare.hpp, support/place.cuh.
//
// What it teaches: three separate kernels exchange data through memory. The scores, queries x keys of every head, are
// written, read, written as probabilities and read again, while q, k, v and o are smaller by the factor keys / head
// size. One kernel keeps a tile of scores in registers and adds it to the output (online softmax). Only q, k, v and o
// are in memory. The arithmetic is the same. The separate kernels are giwa's own: matmul/mma.cuh of example 06 and
// giwa::softmax.
//
// Expected output, with the times of your machine:
//   1 x 4096 tokens, 16 heads of 64, fp16
//               ms     TFLOP/s   MB that must move   GB/s at least
//   unfused     …      …         2080.0              …
//   fused       …      …           32.0              …
//   largest errors: unfused …, fused …, of a plain attention …
#include "matmul/mma.cuh"
#include "matmul/naive.cuh"
#include "support/attention_check.cuh"

using giwa::fp16, giwa::int64;

constexpr int64 heads = 16, head_size = 64;

struct times_scale {
  GIWA_HOST_DEVICE float operator()(float sum, int64 /*row*/, int64 /*column*/) const { return 0.125f * sum; }
};
static_assert(head_size == 64);  // 0.125 is 1 / sqrt(64)

template <class Where, class Epilogue = matmul::identity>
giwa::status product(const Where& where, const giwa::tensor_view<const fp16, 2>& a,
                     const giwa::tensor_view<const fp16, 2>& b, const giwa::tensor_view<fp16, 2>& c,
                     const Epilogue& epilogue = {}) {
  if constexpr (std::is_same_v<Where, cudaStream_t>)
    return matmul::mma(where, a, b, c, epilogue);  // tensor cores
  else
    return matmul::naive(where, a, b, c, epilogue);
}

// softmax(q k^T / 8) v; scores (heads, tokens, tokens) is scratch. All of one batch: (1, tokens, heads, head_size).
template <class Where, class View, class Scores>
giwa::status unfused(const Where& where, const View& q, const View& k, const View& v, const View& o,
                     const Scores& scores) {
  using matrix = giwa::tensor_view<const fp16, 2>;
  const int64 tokens = q.extent(1), row = heads * head_size;
  const auto scores_of = [&](int64 h) {
    return giwa::tensor_view<fp16, 2>(scores.data() + h * tokens * tokens, {tokens, tokens});
  };
  for (int64 h = 0; h < heads; ++h) {
    const matrix a(q.data() + h * head_size, {tokens, head_size}, {row, 1});
    const matrix b(k.data() + h * head_size, {head_size, tokens}, {1, row});  // transposed
    if (const giwa::status s = product(where, a, b, scores_of(h), times_scale{}); !s.ok()) return s;
  }
  if (const giwa::status s = giwa::softmax(where, giwa::tensor_view<const fp16, 3>(scores), scores); !s.ok()) return s;
  for (int64 h = 0; h < heads; ++h) {
    const matrix b(v.data() + h * head_size, {tokens, head_size}, {row, 1});
    const giwa::tensor_view<fp16, 2> c(o.data() + h * head_size, {tokens, head_size}, {row, 1});
    if (const giwa::status s = product(where, matrix(scores_of(h)), b, c); !s.ok()) return s;
  }
  return {};
}

template <class Place>
bool run(const Place& place) {
  const int64 tokens = Place::is_gpu ? 4096 : 256;
  example::tensor<fp16, 4, Place> q(place, {1, tokens, heads, head_size}, 1), k(place, q.sizes(), 2),
      v(place, q.sizes(), 3), o(place, q.sizes());
  example::tensor<fp16, 3, Place> scores(place, {heads, tokens, tokens});

  const auto call_unfused = [&] {
    return unfused(place.where(), q.view(), k.view(), v.view(), o.view(), scores.view());
  };
  const auto call_fused = [&] {
    return giwa::attention_forward<head_size>(place.where(), q.view(), k.view(), v.view(), o.view());
  };
  const double ms_unfused = place.milliseconds(call_unfused);
  const example::comparison off_unfused = example::compare(place, q, k, v, o);
  const double ms_fused = place.milliseconds(call_fused);
  const example::comparison off_fused = example::compare(place, q, k, v, o);

  const double once = 4.0 * static_cast<double>(q.view().size()) * sizeof(fp16);               // q, k, v, o
  const double scores_moved = 4.0 * static_cast<double>(scores.view().size()) * sizeof(fp16);  // written, read, twice
  const auto line = [&](const char* name, double ms, double bytes) {
    std::printf("%-8s %9.3f %11.3g %17.1f %15.0f\n", name, ms,
                example::flops(heads * tokens * tokens, head_size, head_size) / ms * 1e-9, bytes / (1 << 20),
                bytes / ms * 1e-6);
  };
  std::printf("1 x %lld tokens, %lld heads of %lld, fp16\n", static_cast<long long>(tokens),
              static_cast<long long>(heads), static_cast<long long>(head_size));
  std::printf("                ms     TFLOP/s   MB that must move   GB/s at least\n");
  line("unfused", ms_unfused, once + scores_moved);
  line("fused", ms_fused, once);
  std::printf("largest errors: unfused %.1e, fused %.1e, of a plain attention %.1e\n", off_unfused.error,
              off_fused.error, off_fused.plain);
  return off_fused.good() && off_unfused.error <= 3 * off_unfused.plain;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
