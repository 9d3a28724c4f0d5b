// SPDX-License-Identifier: MIT
// The network 784-256-10, two layers with bias and ReLU applied to the sums in registers.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/07_fused_layer.cu -o 07_fused_layer
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: matmul/problem.cuh, matmul/register_tile.cuh.
//
// What it teaches: an epilogue is a functor that the product of matmul/register_tile.cuh applies to each sum. It saves a
// launch that reads the product and writes it again. A product with few rows needs small tiles, so that enough blocks share
// the work: 16 x 8 here, because 128 x 128 leaves all but two multiprocessors idle. The data come from a counter-based
// generator: the GPU, the CPU and the reference in double precision generate the same numbers.
//
// Expected output, with the figures of an H200, 2026-11-21:
//   fp16, batch 32: fused 15.2 us; products, then bias and ReLU 19.7 us, 1.29 times as long
//   fp32, batch 32: fused 14.1 us; products, then bias and ReLU 18.4 us, 1.30 times as long
//   fp16, batch 64: fused 15.5 us; products, then bias and ReLU 20.3 us, 1.31 times as long
//   fp32, batch 64: fused 14.2 us; products, then bias and ReLU 18.9 us, 1.33 times as long
//   device: NVIDIA H200
//   check:  all outputs are right
#include "matmul/register_tile.cuh"

#include <giwa/giwa.cuh>
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

using giwa::int64;
using giwa::throw_if_failed;

constexpr int64 inputs = 784, hidden = 256, outputs = 10;

// 16 x 8 elements by 8 x 8 threads; three steps of 128 are in flight while one is used. Both layers at batch 32 in fp32 on an
// H200, 2026-11-21: 13.8 us; 16 x 16 elements take 16.4, 256 threads 16.5, steps of 64 18.2.
using small_tiles = matmul::tiling<16, 8, 128, 8, 8, 4>;

// --- Epilogues of a layer for the sum x w, (batch, features) ---

struct add_bias {
  const float* bias;  // (features)
  GIWA_HOST_DEVICE float operator()(float sum, int64 /*row*/, int64 column) const { return sum + bias[column]; }
};
struct add_bias_and_relu {
  const float* bias;
  GIWA_HOST_DEVICE float operator()(float sum, int64 /*row*/, int64 column) const {
    const float x = sum + bias[column];
    return x < 0 ? 0 : x;  // keeps a NaN
  }
};
// The epilogue as a separate kernel, on a stored product.
template <class T, class Function>
struct apply {
  giwa::tensor_view<T, 2> x;
  Function function;
  GIWA_HOST_DEVICE void operator()(giwa::index<2> at) const {
    x[at] = giwa::convert<T>{}(function(giwa::convert<float>{}(x[at]), at[0], at[1]));
  }
};

// --- The data: element i of each array, in [-scale, scale) ---

enum array : giwa::uint64 { images, weights_1, bias_1, weights_2, bias_2 };

template <class T>
struct element {
  T* to;
  array which;
  GIWA_HOST_DEVICE static T of(array which, int64 i) {
    const float scale = which == weights_1 ? 1.0f / 28 : which == weights_2 ? 1.0f / 16 : 1;
    const float u = giwa::philox{2026, which}.uniform<float>(static_cast<giwa::uint64>(i));
    return giwa::convert<T>{}((2 * u - 1) * scale);
  }
  GIWA_HOST_DEVICE void operator()(int64 i) const { to[i] = of(which, i); }
};

// --- The network ---

template <class T>
struct network {
  giwa::tensor_view<const T, 2> x, w1, w2;  // (batch, inputs), (inputs, hidden), (hidden, outputs)
  const float *b1, *b2;                     // (hidden), (outputs)
  giwa::tensor_view<T, 2> h;                // (batch, hidden)
  giwa::tensor_view<float, 2> y;            // (batch, outputs)

  template <class Where>
  giwa::status fused(const Where& where) const {
    if (const giwa::status s = matmul::register_tile<small_tiles>(where, x, w1, h, add_bias_and_relu{b1}); !s.ok())
      return s;
    return matmul::register_tile<small_tiles>(where, giwa::tensor_view<const T, 2>(h), w2, y, add_bias{b2});
  }
  template <class Where>
  giwa::status one_by_one(const Where& where) const {
    if (const giwa::status s = matmul::register_tile<small_tiles>(where, x, w1, h); !s.ok()) return s;
    if (const giwa::status s =
            giwa::for_all(where, giwa::extents{h.extent(0), h.extent(1)}, apply<T, add_bias_and_relu>{h, {b1}});
        !s.ok())
      return s;
    if (const giwa::status s = matmul::register_tile<small_tiles>(where, giwa::tensor_view<const T, 2>(h), w2, y);
        !s.ok())
      return s;
    return giwa::for_all(where, giwa::extents{y.extent(0), y.extent(1)}, apply<float, add_bias>{y, {b2}});
  }
};

// The outputs in double precision, and their tolerance: h is rounded to T once, or twice in separate kernels, and fp32 sums
// have rounding errors.
template <class T>
bool right(const std::vector<float>& y, int64 batch) {
  const double rounding = std::ldexp(1.0, -giwa::precision_of<T>::significand_bits), sums = 1e-5;
  bool all = true;
  for (int64 row = 0; row < batch; ++row) {
    std::vector<double> h(hidden);
    for (int64 i = 0; i < hidden; ++i) {
      double sum = element<float>::of(bias_1, i);
      for (int64 j = 0; j < inputs; ++j)
        sum += giwa::convert<double>{}(element<T>::of(images, row * inputs + j)) *
               giwa::convert<double>{}(element<T>::of(weights_1, j * hidden + i));
      h[static_cast<std::size_t>(i)] = sum < 0 ? 0 : sum;
    }
    for (int64 o = 0; o < outputs; ++o) {
      double sum = element<float>::of(bias_2, o), allowed = sums;
      for (int64 i = 0; i < hidden; ++i) {
        const double w = giwa::convert<double>{}(element<T>::of(weights_2, i * outputs + o));
        sum += h[static_cast<std::size_t>(i)] * w;
        allowed += std::abs(w) * (2.1 * rounding * h[static_cast<std::size_t>(i)] + 1e-6);
      }
      all = all && std::abs(static_cast<double>(y[static_cast<std::size_t>(row * outputs + o)]) - sum) <= allowed;
    }
  }
  return all;
}

// --- On the GPU, or on the CPU ---

struct on_gpu {
  giwa::stream stream = throw_if_failed(giwa::stream::create());
  cudaStream_t where() const { return stream; }
  template <class T>
  giwa::device_array<T> make(int64 size) {
    return throw_if_failed(giwa::device_array<T>::allocate(stream, size));
  }
  template <class Array>
  void read(const Array& from, std::vector<float>& to) {
    throw_if_failed(giwa::to_host(stream, from, to));
  }
  template <class Work>
  double microseconds(Work work) {
    return 1e3 * throw_if_failed(giwa::time_on(stream, work, /*warm_up=*/20, /*repeats=*/100)).median;
  }
};
struct on_cpu {
  giwa::host_t where() const { return giwa::host; }
  template <class T>
  std::vector<T> make(int64 size) {
    return std::vector<T>(static_cast<std::size_t>(size));
  }
  void read(const std::vector<float>& from, std::vector<float>& to) { to = from; }
  template <class Work>
  double microseconds(Work work) {
    const auto start = std::chrono::steady_clock::now();
    throw_if_failed(work());
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }
};

template <class T, class Machine>
bool run(Machine& machine, const char* type, int64 batch) {
  const auto fill = [&](auto& array, enum array which) {
    using value = std::remove_pointer_t<decltype(array.data())>;
    throw_if_failed(
        giwa::for_all(machine.where(), static_cast<int64>(array.size()), element<value>{array.data(), which}));
  };
  auto x = machine.template make<T>(batch * inputs), w1 = machine.template make<T>(inputs * hidden),
       w2 = machine.template make<T>(hidden * outputs), h = machine.template make<T>(batch * hidden);
  auto b1 = machine.template make<float>(hidden), b2 = machine.template make<float>(outputs),
       y = machine.template make<float>(batch * outputs);
  fill(x, images), fill(w1, weights_1), fill(b1, bias_1), fill(w2, weights_2), fill(b2, bias_2);
  const network<T> net{
      {x.data(), {batch, inputs}}, {w1.data(), {inputs, hidden}}, {w2.data(), {hidden, outputs}}, b1.data(), b2.data(),
      {h.data(), {batch, hidden}}, {y.data(), {batch, outputs}}};

  std::vector<float> result(static_cast<std::size_t>(batch * outputs));
  const double fused = machine.microseconds([&] { return net.fused(machine.where()); });
  machine.read(y, result);
  bool all = right<T>(result, batch);
  fill(y, bias_2);  // overwrites the previous result
  const double one_by_one = machine.microseconds([&] { return net.one_by_one(machine.where()); });
  machine.read(y, result);
  all = right<T>(result, batch) && all;
  std::printf("%s, batch %lld: fused %.1f us; products, then bias and ReLU %.1f us, %.2f times as long%s\n", type,
              static_cast<long long>(batch), fused, one_by_one, one_by_one / fused, all ? "" : "   WRONG");
  return all;
}

template <class Machine>
bool run_all(Machine&& machine) {
  bool all = true;
  for (const int64 batch : {32, 64}) {
    all = run<giwa::fp16>(machine, "fp16", batch) && all;
    all = run<float>(machine, "fp32", batch) && all;
  }
  return all;
}

int main() try {
  const giwa::device_choice choice = giwa::choose_device();
  const bool all = choice.on_gpu() ? run_all(on_gpu{}) : run_all(on_cpu{});
  std::printf("device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  if (!choice.on_gpu()) std::printf("        %s\n", choice.found.advice);
  std::printf("check:  %s\n", all ? "all outputs are right" : "FAILED, an output is wrong");
  return all ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
