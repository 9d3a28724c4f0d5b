// SPDX-License-Identifier: MIT
// attention_forward on the CPU, compared with three loops in fp32. The comparison with PyTorch is bench/torch/attention.py.
#include <giwa/host.hpp>
#include <giwa/numeric/philox.hpp>

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using giwa::int64;

constexpr int64 heads = 8;

/// (1, length, heads, head size), every element in [-1, 1).
struct problem {
  int64 length, head_size;
  std::vector<float> q, k, v, o;

  problem(int64 length_, int64 head_size_) : length(length_), head_size(head_size_) {
    giwa::uint64 stream = 0;
    for (std::vector<float>* const x : {&q, &k, &v, &o}) {
      const giwa::philox random(1, stream++);
      x->resize(static_cast<std::size_t>(length * heads * head_size));
      for (std::size_t i = 0; i < x->size(); ++i) (*x)[i] = 2 * random.uniform<float>(i) - 1;
    }
  }
  template <class T>
  giwa::tensor_view<T, 4> view(T* data) const {
    return {data, {1, length, heads, head_size}};
  }
  /// Multiplications and additions of both products.
  double operations() const { return 4.0 * static_cast<double>(length * length * heads * head_size); }
};

/// One row as everybody writes it first: a dot product a key, the softmax, a sum over keys.
void naive_row(problem& p, int64 query, int64 head, std::vector<float>& score) {
  const int64 step = heads * p.head_size, at = query * step + head * p.head_size;
  const float scale = 1 / std::sqrt(static_cast<float>(p.head_size));
  float most = -HUGE_VALF, sum = 0;
  for (int64 key = 0; key < p.length; ++key) {
    const float* const k = &p.k[static_cast<std::size_t>(key * step + head * p.head_size)];
    float s = 0;
    for (int64 i = 0; i < p.head_size; ++i) s += p.q[static_cast<std::size_t>(at + i)] * k[i];
    score[static_cast<std::size_t>(key)] = s * scale;
    most = std::max(most, s * scale);
  }
  for (float& s : score) sum += s = std::exp(s - most);
  float* const o = &p.o[static_cast<std::size_t>(at)];
  for (int64 i = 0; i < p.head_size; ++i) o[i] = 0;
  for (int64 key = 0; key < p.length; ++key) {
    const float* const v = &p.v[static_cast<std::size_t>(key * step + head * p.head_size)];
    for (int64 i = 0; i < p.head_size; ++i) o[i] += score[static_cast<std::size_t>(key)] / sum * v[i];
  }
}

void naive(benchmark::State& state) {
  problem p(state.range(0), state.range(1));
  std::vector<float> score(static_cast<std::size_t>(p.length));
  for (auto _ : state)
    for (int64 head = 0; head < heads; ++head)
      for (int64 query = 0; query < p.length; ++query) naive_row(p, query, head, score);
  state.counters["flop/s"] = benchmark::Counter(p.operations(), benchmark::Counter::kIsIterationInvariantRate);
}

template <int HeadSize, class Mask>
void attention(benchmark::State& state) {
  problem p(state.range(0), HeadSize);
  const auto call = [&] {
    const giwa::status s =
        giwa::attention_forward<HeadSize>(giwa::host, p.view<const float>(p.q.data()), p.view<const float>(p.k.data()),
                                          p.view<const float>(p.v.data()), p.view(p.o.data()), Mask{});
    if (!s.ok()) std::abort();
  };
  call();
  if (giwa::stdlib::same_as<Mask, giwa::full>) {  // some rows against the three loops
    std::vector<float> got = p.o, score(static_cast<std::size_t>(p.length));
    for (const int64 query : {int64{0}, p.length / 3, p.length - 1}) {
      naive_row(p, query, 5, score);
      for (int64 i = 0; i < HeadSize; ++i) {
        const auto at = static_cast<std::size_t>((query * heads + 5) * HeadSize + i);
        if (!(std::abs(got[at] - p.o[at]) < 1e-5f)) std::abort();
      }
    }
  }
  for (auto _ : state) call();
  const double kept = giwa::stdlib::same_as<Mask, giwa::full> ? 1 : 0.5;
  state.counters["flop/s"] = benchmark::Counter(kept * p.operations(), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

BENCHMARK(naive)->Args({1024, 64})->Args({1024, 128})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(attention<64, giwa::full>)->Arg(1024)->Arg(4096)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(attention<128, giwa::full>)->Arg(1024)->Arg(4096)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(attention<64, giwa::causal>)->Arg(1024)->Arg(4096)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(attention<128, giwa::causal>)->Arg(1024)->Arg(4096)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_MAIN();
