// SPDX-License-Identifier: MIT
// Five timings of a GPU, and what giwa finds there, for a report that is pasted: see gpu_report.py.
#include <giwa/attention_backward.cuh>
#include <giwa/cache.cuh>
#include <giwa/device.hpp>
#include <giwa/giwa.cuh>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "support/gpu.cuh"

namespace {

using namespace giwa_test;
using giwa::causal;
using giwa::fp16;

struct fill_with_noise {
  fp16* to;
  GIWA_DEVICE void operator()(int64 i) const {
    to[i] = giwa::convert<fp16>{}(giwa::philox(7).uniform<float>(static_cast<uint64>(i)) * 2 - 1);
  }
};
struct add_one {
  float* x;
  GIWA_DEVICE void operator()(int64 i) const { x[i] += 1; }
};

/// The median of 20 calls in milliseconds.
template <class Call>
double milliseconds(cudaStream_t s, const Call& call) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin));
  check_cuda(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 25; ++i) {
    check_cuda(cudaEventRecord(begin, s));
    giwa::throw_if_failed(call());
    check_cuda(cudaEventRecord(end, s));
    check_cuda(cudaEventSynchronize(end));
    float t = 0;
    check_cuda(cudaEventElapsedTime(&t, begin, end));
    if (i >= 5) times.push_back(t);
  }
  check_cuda(cudaEventDestroy(begin));
  check_cuda(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}
void print(const char* what, double ms, double amount, const char* unit) {
  std::printf("%-58s %9.4f ms %9.1f %s\n", what, ms, amount / ms, unit);
}

}  // namespace

int main() {
  const auto environment = giwa::check_environment();
  giwa::print(environment);
  const giwa::stream s = new_stream();
  constexpr int64 batch = 4, length = 2048, heads = 16, size = 64, rows = batch * length * heads;
  gpu_array<fp16> q(rows * size), k(rows * size), v(rows * size), o(rows * size), d(rows * size), dq(rows * size),
      dk(rows * size), dv(rows * size);
  gpu_array<float> lse(rows), numbers(std::size_t{1} << 25, 0);
  for (const auto* a : {&q, &k, &v, &d})
    giwa::throw_if_failed(giwa::for_all(s, rows * size, fill_with_noise{a->data()}));
  const auto view = [](const gpu_array<fp16>& a) {
    return giwa::tensor_view<fp16, 4>(a.data(), {batch, length, heads, size});
  };
  const auto in = [](const gpu_array<fp16>& a) {
    return giwa::tensor_view<const fp16, 4>(a.data(), {batch, length, heads, size});
  };
  const giwa::tensor_view<float, 3> lse_view(lse.data(), {batch, heads, length});

  const auto n = static_cast<int64>(numbers.size());
  print("for_all, 2^25 fp32 numbers, x += 1",
        milliseconds(s, [&] { return giwa::for_all(s, n, add_one{numbers.data()}); }), static_cast<double>(n) * 8e-6,
        "GB/s");
  const giwa::tensor_view<const fp16, 2> rows_in(q.data(), {rows * size / 4096, 4096});
  const giwa::tensor_view<fp16, 2> rows_out(o.data(), {rows * size / 4096, 4096});
  print("softmax, 2048 rows of 4096, fp16", milliseconds(s, [&] { return giwa::softmax(s, rows_in, rows_out); }),
        static_cast<double>(rows * size) * 4e-6, "GB/s");
  const double flops =
      4.0 * static_cast<double>(batch * heads * length) * static_cast<double>(length * size) / 2 * 1e-9;
  print("attention_forward, (4, 2048, 16, 64) fp16 causal",
        milliseconds(s,
                     [&] {
                       return giwa::attention_forward<64>(s, in(q), in(k), in(v), view(o), causal{},
                                                          giwa::plain_score{}, {.lse = lse_view});
                     }),
        flops, "TFLOPS");
  giwa::attention_problem sizes{batch, length, length, heads, heads, size, size, int64{sizeof(fp16)}};
  const gpu_array<unsigned char> workspace(static_cast<std::size_t>(giwa::detail::backward_workspace_bytes(sizes)));
  print("attention_backward, the same",
        milliseconds(s,
                     [&] {
                       return giwa::attention_backward<64>(
                           s, in(q), in(k), in(v), in(o), in(d), view(dq), view(dk), view(dv), causal{},
                           giwa::plain_score{},
                           {.lse = lse_view, .workspace = {workspace.data(), {static_cast<int64>(workspace.size())}}});
                     }),
        2.5 * flops, "TFLOPS");
  const giwa::kv_cache<const fp16> cache{.k = in(k), .v = in(v)};
  const giwa::tensor_view<const fp16, 4> one(q.data(), {batch, 1, heads, size});
  const giwa::tensor_view<fp16, 4> result(o.data(), {batch, 1, heads, size});
  print(
      "attention_cached, 4 queries to 2048 keys of 16 heads, fp16",
      milliseconds(
          s, [&] { return giwa::attention_cached<64>(s, cache, one, result, giwa::full{}, giwa::plain_score{}, {}); }),
      static_cast<double>(rows * size) * 4e-6, "GB/s");
}
