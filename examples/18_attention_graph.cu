// SPDX-License-Identifier: MIT
// Attention inside a CUDA graph: one step of text generation with 24 layers, captured once and replayed.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/18_attention_graph.cu -o 18_attention_graph
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/graph.cuh,
//                        support/place.cuh.
//
// What it teaches: attention_forward allocates nothing and does not synchronise, so it can be captured as it is. A
// graph fixes pointers and sizes. The memory that a mask refers to is read when the kernel runs, so one graph serves
// while the sequences grow. Here the captured step itself makes them longer. Small calls gain most, because the host
// submits one graph in place of 25 calls. Where a graph does not fit, attention_plan makes the calls cheaper for the
// host: it checks the arguments and prepares the kernel's parameters once. On an H200 this step does not become faster
// by it, because its kernels take longer than the calls. Without a GPU there is neither, and the calls are made one by
// one.
//
// Expected output, with the times of your machine:
//   24 layers, 4 sequences of 1 to 64 keys, 8 heads of 64, fp16
//   25 calls     … us a step   largest error …, of a plain attention …
//   one plan     … us a step   largest error …, of a plain attention …
//   one graph    … us a step   largest error …, of a plain attention …
#include "support/attention_check.cuh"
#include "support/graph.cuh"

using giwa::fp16, giwa::int64;

constexpr int64 layers = 24, count = 4, room = 64, heads = 8, head_size = 64;

struct grow {
  int* lengths;  // (count)
  GIWA_HOST_DEVICE void operator()(int64 i) const { lengths[i] = lengths[i] % static_cast<int>(room) + 1; }
};

/// One more key for each sequence, and then a query of each in every layer. `attend` launches the attention of a layer.
template <class Place, class Attend>
giwa::status step(const Place& place, int* lengths, const Attend& attend) {
  if (const giwa::status s = giwa::for_all(place.where(), count, grow{lengths}); !s.ok()) return s;
  for (int64 layer = 0; layer < layers; ++layer)
    if (const giwa::status s = attend(); !s.ok()) return s;
  return {};
}

template <class Place>
bool run(const Place& place) {
  example::tensor<fp16, 4, Place> q(place, {count, 1, heads, head_size}, 1),
      k(place, {count, room, heads, head_size}, 2), v(place, k.sizes(), 3), o(place, q.sizes());
  auto lengths = place.put(std::vector<int>{0, 7, 20, 63});
  bool right = true;
  const auto show = [&](const char* name, const auto& work) {
    const double ms = place.milliseconds(work, /*repeats=*/10);
    const std::vector<int> now = place.get(lengths);
    const example::comparison c = example::compare(place, q, k, v, o, giwa::prefix{.counts = now.data()});
    std::printf("%-12s %8.1f us a step   largest error %.1e, of a plain attention %.1e\n", name, 1e3 * ms, c.error,
                c.plain);
    right = right && c.good();
  };
  const giwa::prefix mask{.counts = lengths.data()};
  const auto calls = [&] {
    return step(place, lengths.data(), [&] {
      return giwa::attention_forward<head_size>(place.where(), q.view(), k.view(), v.view(), o.view(), mask);
    });
  };
  std::printf("%lld layers, %lld sequences of 1 to %lld keys, %lld heads of %lld, fp16\n",
              static_cast<long long>(layers), static_cast<long long>(count), static_cast<long long>(room),
              static_cast<long long>(heads), static_cast<long long>(head_size));
  show("25 calls", calls);
  if constexpr (Place::is_gpu) {
    // Each layer of a model has a plan, or one plan with plan.rebind() for its tensors.
    const auto plan =
        throw_if_failed(giwa::make_attention_plan<head_size>(q.view(), k.view(), v.view(), o.view(), mask));
    show("one plan", [&] { return step(place, lengths.data(), [&] { return plan.launch(place.where()); }); });
    example::graph recorded(place.where(), calls);
    show("one graph", [&] { return recorded.start(place.where()); });
    throw_if_failed(giwa::synchronize(place.where()));  // a graph outlives its last start
  }
  return right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
