// SPDX-License-Identifier: MIT
// The matrix product in six steps, each of which makes the previous one faster.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/06_matmul.cu -o 06_matmul
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: matmul/fp32.cuh, matmul/mma.cuh, matmul/naive.cuh, matmul/problem.cuh,
//                        matmul/register_tile.cuh, matmul/shared_tile.cuh, matmul/split_fp16.cuh, matmul/wgmma.cuh.
//
// What it teaches, with one file of matmul/ for each step:
//   naive.cuh          one thread for each element: every product reads its operands from memory or a cache
//   shared_tile.cuh    tiles in shared memory, and a pipeline that fills the next tile while this one is used
//   register_tile.cuh  tiles in registers: 16 numbers are read for 64 products; asynchronous copies
//   mma.cuh            16-bit tensor cores by mma.sync; swizzled tiles, which ldmatrix reads without bank conflicts
//   wgmma.cuh          Hopper: one thread loads by TMA, two warpgroups multiply by wgmma, two blocks share their loads
//   fp32.cuh           split fp16: fp32 on Hopper's tensor cores by three fp16 products, with the precision of fp32
// Every step takes any sizes and strides, sums in fp32, and applies a custom function to each sum before it is stored
// (07_fused_layer.cu). The first three also run on the CPU, in the host executor. The check of a product does not compute
// all of it: it computes some elements in double precision, from inputs that are a function of their position.
//
// Expected output, with the figures of an H200, 2026-11-21, step 6 2026-11-22:
//   c = a b, 4096 x 4096 x 4096
//   fp32                     ms   TFLOP/s   vs previous step
//     1 naive             68.57         2
//     2 shared tile       29.78      4.62   2.3
//     3 register tile      3.60      38.1   8.3
//     6 fp32 by fp16       0.73       188   4.9
//   fp16                     ms   TFLOP/s   vs previous step
//     1 naive             62.26      2.21
//     2 shared tile       33.84      4.06   1.8
//     3 register tile      3.63      37.9   9.3
//     4 mma                0.40       342   9.0
//     5 wgmma              0.19       725   2.1
//   device: NVIDIA H200
//   check:  all steps are right
#include "matmul/fp32.cuh"
#include "matmul/naive.cuh"
#include "matmul/register_tile.cuh"
#include "matmul/shared_tile.cuh"
#include "matmul/wgmma.cuh"

#include <giwa/giwa.cuh>
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <type_traits>
#include <vector>

using giwa::int64;
using giwa::throw_if_failed;

// Element i of a matrix, in [-1/2, 1/2), the same on the GPU and the CPU.
template <class T>
struct random_matrix {
  T* to;
  giwa::uint64 stream;
  GIWA_HOST_DEVICE static T element(giwa::uint64 stream, int64 i) {
    return giwa::convert<T>{}(giwa::philox{2026, stream}.uniform<float>(static_cast<giwa::uint64>(i)) - 0.5f);
  }
  GIWA_HOST_DEVICE void operator()(int64 i) const { to[i] = element(stream, i); }
};

// Elements of c in double precision: the corners and random ones.
template <class T>
class samples {
 public:
  samples(int64 m, int64 n, int64 k) : n_(n) {
    const giwa::philox chance{7};
    for (int i = 0; i < 200; ++i) {
      const auto at = static_cast<giwa::uint64>(i);
      sample s{i < 4 ? i / 2 * (m - 1) : static_cast<int64>(chance(at).word[0] % static_cast<giwa::uint64>(m)),
               i < 4 ? i % 2 * (n - 1) : static_cast<int64>(chance(at).word[1] % static_cast<giwa::uint64>(n))};
      for (int64 j = 0; j < k; ++j) {
        const double product = giwa::convert<double>{}(random_matrix<T>::element(0, s.row * k + j)) *
                               giwa::convert<double>{}(random_matrix<T>::element(1, j * n + s.column));
        s.value += product;
        s.squares += product * product;
      }
      samples_.push_back(s);
    }
  }
  // The rounding error of a sum grows with its partial sums, which are about the root of `squares`; tensor-core accumulation
  // truncates toward zero. One missing product is 20 times the tolerance. The tolerance of fp32 is four times smaller, so
  // that operands rounded to fp16 or tf32 fail. Then c is rounded to T. A NaN fails.
  bool agree(const std::vector<T>& c, int64 k) const {
    const double half_ulp = std::ldexp(1.0, -giwa::precision_of<T>::significand_bits);
    return std::ranges::all_of(samples_, [&](const sample& s) {
      const double got = giwa::convert<double>{}(c[static_cast<std::size_t>(s.row * n_ + s.column)]);
      const double allowed = sizeof(T) == 4 ? 0x1p-20 : 0x1p-18;
      const double sum_error = allowed * std::sqrt(static_cast<double>(k) * s.squares);
      return std::abs(got - s.value) <= sum_error + 1.01 * half_ulp * (std::abs(s.value) + sum_error);
    });
  }

 private:
  struct sample {
    int64 row, column;
    double value = 0, squares = 0;
  };
  int64 n_;
  std::vector<sample> samples_;
};

// The memory of the matrices, and the clock.
template <class T>
struct on_gpu {
  giwa::stream stream = throw_if_failed(giwa::stream::create());
  giwa::device_array<T> make(int64 size) { return throw_if_failed(giwa::device_array<T>::allocate(stream, size)); }
  cudaStream_t where() const { return stream; }
  void read(giwa::device_array<T>& from, std::vector<T>& to) { throw_if_failed(giwa::to_host(stream, from, to)); }
  void poison(giwa::device_array<T>& c) {
    throw_if_failed(
        giwa::to_status(cudaMemsetAsync(c.data(), 0xff, static_cast<std::size_t>(c.size()) * sizeof(T), stream)));
  }
  template <class Work>
  double milliseconds(Work work) {
    return throw_if_failed(giwa::time_on(stream, work, /*warm_up=*/1)).median;
  }
};
template <class T>
struct on_cpu {
  std::vector<T> make(int64 size) { return std::vector<T>(static_cast<std::size_t>(size)); }
  giwa::host_t where() const { return giwa::host; }
  void read(const std::vector<T>& from, std::vector<T>& to) { to = from; }
  void poison(std::vector<T>& c) { std::ranges::fill(c, giwa::convert<T>{}(std::nan(""))); }
  template <class Work>
  double milliseconds(Work work) {
    const auto start = std::chrono::steady_clock::now();
    throw_if_failed(work());
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
};

// Runs the steps one after the other on the same matrices; returns whether all are right.
template <class T, template <class> class Machine>
bool climb(const char* type, int64 size) {
  const int64 m = size, n = size, k = size;
  Machine<T> machine;
  auto a = machine.make(m * k), b = machine.make(k * n), c = machine.make(m * n);
  throw_if_failed(giwa::for_all(machine.where(), m * k, random_matrix<T>{a.data(), 0}));
  throw_if_failed(giwa::for_all(machine.where(), k * n, random_matrix<T>{b.data(), 1}));
  const giwa::tensor_view<const T, 2> view_a{a.data(), {m, k}}, view_b{b.data(), {k, n}};
  const giwa::tensor_view<T, 2> view_c{c.data(), {m, n}};
  const samples<T> expected(m, n, k);
  std::vector<T> result(static_cast<std::size_t>(m * n));

  std::printf("%-18s %8s %9s   vs previous step\n", type, "ms", "TFLOP/s");
  bool right = true;
  double before = 0;
  const auto step = [&](const char* name, auto product) {
    machine.poison(c);
    const double ms = machine.milliseconds([&] { return product(machine.where(), view_a, view_b, view_c); });
    std::printf("  %-16s %8.2f %9.3g", name, ms, 2e-9 * static_cast<double>(m) * static_cast<double>(n * k) / ms);
    if (before > 0) std::printf("   %.1f", before / ms);
    before = ms;
    machine.read(c, result);
    const bool agrees = expected.agree(result, k);
    std::printf("%s\n", agrees ? "" : "   WRONG");
    right = right && agrees;
  };

  step("1 naive", [](auto... arguments) { return matmul::naive(arguments...); });
  step("2 shared tile", [](auto... arguments) { return matmul::shared_tile(arguments...); });
  step("3 register tile", [](auto... arguments) { return matmul::register_tile(arguments...); });
  if constexpr (sizeof(T) == 2 && std::is_same_v<decltype(machine.where()), cudaStream_t>) {
    step("4 mma", [](auto... arguments) { return matmul::mma(arguments...); });
    step("5 wgmma", [](auto... arguments) { return matmul::wgmma(arguments...); });
  }
  if constexpr (sizeof(T) == 4 && std::is_same_v<decltype(machine.where()), cudaStream_t>) {
    auto workspace = throw_if_failed(
        giwa::device_array<unsigned char>::allocate(machine.where(), matmul::fp32_workspace_bytes(m, n, k)));
    step("6 fp32 by fp16", [&](auto... arguments) { return matmul::fp32(arguments..., workspace); });
  }
  return right;
}

int main() try {
  const giwa::device_choice choice = giwa::choose_device();
  const int64 size = choice.on_gpu() ? 4096 : 160;
  const auto number = static_cast<long long>(size);
  std::printf("c = a b, %lld x %lld x %lld\n", number, number, number);
  bool right = true;
  if (choice.on_gpu()) {
    right = climb<float, on_gpu>("fp32", size) && right;
    right = climb<giwa::fp16, on_gpu>("fp16", size) && right;
  } else {
    right = climb<float, on_cpu>("fp32", size) && right;
    right = climb<giwa::fp16, on_cpu>("fp16", size) && right;
  }
  std::printf("device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  if (!choice.on_gpu()) std::printf("        %s\n", choice.found.advice);
  std::printf("check:  %s\n", right ? "all steps are right" : "FAILED, a step is wrong");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
