// SPDX-License-Identifier: MIT
// One attention call in fp32, tf32, bf16 and fp16: its bytes, its time and its error, as a table.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/33_precision.cu -o 33_precision
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: how a call gets a workspace, and what each precision saves and costs. The inputs are the same fp32
// numbers, rounded to the type of the tensors; the error is that of the whole way, rounding included, against double
// precision of the unrounded numbers. fp32 with a workspace runs on tensor cores with the accuracy of fp32, as three
// products of split fp16; tf32 is one product. Without a workspace both are fp32 arithmetic, and so they are on a CPU.
// bf16 has the range of fp32 and 8 bits, fp16 has 11 bits and numbers up to 65504.
//
// Expected output: a line for each precision; on a CPU the call is smaller.
//   | precision | bytes of an element | tensors, MiB | workspace, MiB | ms | TFLOP/s | relative error |
//   |---|---|---|---|---|---|---|
//   | fp32 | 4 | 512.0 | 384.3 | 2.658 | 206.8 | 4.7e-07 |
//   | tf32 | 4 | 512.0 | 384.3 | 1.175 | 468.1 | 4.3e-04 |
//   | bf16 | 2 | 256.0 | 0.0 | 0.820 | 670 | 3.9e-03 |
//   | fp16 | 2 | 256.0 | 0.0 | 0.851 | 646.2 | 4.8e-04 |
//   device: NVIDIA H200
//   check:  right
#include "support/place.cuh"

#if defined(__CUDACC__)
#include <giwa/attention.cuh>
#endif

#include <cmath>

using giwa::int64, giwa::throw_if_failed;

constexpr int head_size = 128;
constexpr int64 checked = 8;  // queries of each head

template <class To>
struct round_to {
  GIWA_HOST_DEVICE To operator()(float x) const { return giwa::convert<To>{}(x); }
};

template <class Place>
struct call {
  const Place& place;
  giwa::index<4> sizes;  // (batch, tokens, heads, head size) of all four tensors
  example::tensor<float, 4, Place> q{place, sizes, 1}, k{place, sizes, 2}, v{place, sizes, 3};
  std::vector<double> expected{};  // (checked, heads, head size), of the first queries of the first batch element

  void compute_expected() {
    const std::vector<float> from_q = q.on_host(place), from_k = k.on_host(place), from_v = v.on_host(place);
    const giwa::index<4> queries{1, checked, sizes[2], head_size}, keys{1, sizes[1], sizes[2], head_size};
    expected.resize(static_cast<std::size_t>(checked * sizes[2] * head_size));
    using view = giwa::tensor_view<const float, 4>;
    throw_if_failed(giwa::attention_reference(giwa::host, view(from_q.data(), queries), view(from_k.data(), keys),
                                              view(from_v.data(), keys),
                                              giwa::tensor_view<double, 4>(expected.data(), queries)));
  }

  // Computes the call with tensors of type T and prints its line. Tile chooses how fp32 is multiplied.
  template <class T, class Accuracy = giwa::fp32>
  bool line(const char* name, double limit) {
    const auto rounded = [&](example::tensor<float, 4, Place>& from) {
      example::tensor<T, 4, Place> to(place, sizes);
      const int64 n = from.view().size();
      throw_if_failed(giwa::for_all(place.where(),
                                    giwa::elementwise{giwa::tensor_view<T, 1>(to.view().data(), {n}),
                                                      giwa::tensor_view<float, 1>(from.view().data(), {n})},
                                    round_to<T>{}));
      return to;
    };
    auto tq = rounded(q), tk = rounded(k), tv = rounded(v);
    example::tensor<T, 4, Place> o(place, sizes);

    const int64 bytes = giwa::workspace_bytes(tq.view(), tk.view(), tv.view(), o.view());
    auto workspace = place.template make<unsigned char>(bytes);
    giwa::attention_options options;
    options.workspace = {workspace.data(), {bytes}};
    const double ms = place.milliseconds([&] {
      return giwa::attention_forward<head_size, Accuracy>(place.where(), tq.view(), tk.view(), tv.view(), o.view(),
                                                          options);
    });

    const std::vector<T> got = o.on_host(place);
    double difference = 0, all = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {  // the first elements of o are the same queries
      const double e = double{giwa::convert<float>{}(got[i])} - expected[i];
      difference += e * e;
      all += expected[i] * expected[i];
    }
    const double error = std::sqrt(difference / all), mib = 1 << 20, elements = static_cast<double>(o.view().size());
    const double flop = 4 * elements * static_cast<double>(sizes[1]);
    std::printf("| %s | %d | %.1f | %.1f | %.3f | %.4g | %.1e |\n", name, static_cast<int>(sizeof(T)),
                4 * elements * sizeof(T) / mib, static_cast<double>(bytes) / mib, ms, flop * 1e-9 / ms, error);
    return error < limit;  // false for a NaN too
  }
};

template <class Place>
bool run(const Place& place) {
  const giwa::index<4> sizes =
      Place::is_gpu ? giwa::index<4>{4, 4096, 16, head_size} : giwa::index<4>{1, 256, 2, head_size};
  call<Place> attention{place, sizes};
  attention.compute_expected();
  std::printf("| precision | bytes of an element | tensors, MiB | workspace, MiB | ms | TFLOP/s | relative error |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  const double unit = 1.0 / (1 << 11);  // half the distance of neighbours in tf32 and fp16, relative
  bool right = attention.template line<float, giwa::fp32>("fp32", unit / (1 << 8));
  right = attention.template line<float, giwa::tf32>("tf32", 4 * unit) && right;
  right = attention.template line<giwa::bf16>("bf16", 32 * unit) && right;
  right = attention.template line<giwa::fp16>("fp16", 4 * unit) && right;
  return right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
