// SPDX-License-Identifier: MIT
// The softmax of rows by one call on the GPU or the CPU, for any row length, type and stride, and its algebra.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/08_row_softmax.cu -o 08_row_softmax
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
//
// What it teaches: softmax(where, in, out) takes views, so a transposed matrix or some columns of a larger one need no copy.
// Inputs and outputs may be fp16, bf16, fp32 or fp64. The state of a softmax, the largest value and the sum, can be computed
// for parts of a row and merged, which makes it fast. softmax_state is this state for custom kernels.
//
// Expected output, with the time of an H200, 2026-11-21; on a CPU the matrix is smaller:
//   ln(e^1 + e^2 + e^3 + e^4) = 4.440190, from two halves 4.440190
//   softmax of 65536 rows of 8192 fp16: 0.528 ms, 4070 GB/s
//   device: NVIDIA H200
//   check:  every row adds up to 1, the transposed view gives the same bits
#include <giwa/giwa.cuh>
#include <giwa/host.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

using giwa::fp16;
using giwa::int64;
using giwa::softmax;
using giwa::tensor_view;
using giwa::throw_if_failed;

// The state of a part of a row; parts merge in any order.
giwa::softmax_state<float> state_of(std::initializer_list<float> part) {
  giwa::softmax_state<float> s;
  for (const float x : part) s = giwa::softmax_state<float>::merge(s, giwa::softmax_state<float>::of(x));
  return s;
}

void show_the_algebra() {
  const auto whole = state_of({1, 2, 3, 4});
  const auto merged = giwa::softmax_state<float>::merge(state_of({4, 1}), state_of({3, 2}));
  std::printf("ln(e^1 + e^2 + e^3 + e^4) = %f, from two halves %f\n", static_cast<double>(whole.lse()),
              static_cast<double>(merged.lse()));
}

struct fill_logits {
  fp16* out;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    const float u = giwa::philox{7}.uniform<float>(static_cast<giwa::uint64>(i));
    out[i] = giwa::convert<fp16>{}(10 * u - 5);
  }
};

// Every row must add up to 1, and rows that were read through a transposed view must have the same bits.
bool right(const std::vector<fp16>& rows, const std::vector<fp16>& turned, int64 columns) {
  bool good = true;
  for (int64 r = 0; r < 4; ++r) {
    double sum = 0;
    for (int64 c = 0; c < columns; ++c) {
      const fp16 here = rows[static_cast<std::size_t>(r * columns + c)];
      const fp16 there = turned[static_cast<std::size_t>(c * 4 + r)];
      good = good && std::memcmp(&here, &there, sizeof here) == 0;
      sum += giwa::convert<double>{}(here);
    }
    good = good && std::abs(sum - 1) < 1e-2;
  }
  return good;
}

void report(int64 rows, int64 columns, double ms) {
  const double bytes = 2.0 * static_cast<double>(rows * columns) * sizeof(fp16);
  std::printf("softmax of %lld rows of %lld fp16: %.3f ms, %.0f GB/s\n", static_cast<long long>(rows),
              static_cast<long long>(columns), ms, bytes * 1e-6 / ms);
}

// (rows, columns) in memory of `where`; `turned` gets the first four rows as (columns, 4).
template <class Where>
void call_both(Where&& where, const fp16* in, fp16* out, fp16* turned, int64 rows, int64 columns) {
  throw_if_failed(
      softmax(where, tensor_view<const fp16, 2>(in, {rows, columns}), tensor_view<fp16, 2>(out, {rows, columns})));
  throw_if_failed(
      softmax(where, tensor_view<const fp16, 2>(in, {4, columns}), tensor_view<fp16, 2>(turned, {4, columns}, {1, 4})));
}

bool run_on_gpu() {
  constexpr int64 rows = 65536, columns = 8192;
  const giwa::stream stream = throw_if_failed(giwa::stream::create());
  auto in = throw_if_failed(giwa::device_array<fp16>::allocate(stream, rows * columns));
  auto out = throw_if_failed(giwa::device_array<fp16>::allocate(stream, rows * columns));
  auto turned = throw_if_failed(giwa::device_array<fp16>::allocate(stream, 4 * columns));
  throw_if_failed(giwa::for_all(stream, rows * columns, fill_logits{in.data()}));
  call_both(static_cast<cudaStream_t>(stream), in.data(), out.data(), turned.data(), rows, columns);

  const tensor_view<const fp16, 2> x(in.data(), {rows, columns});
  const tensor_view<fp16, 2> y(out.data(), {rows, columns});
  report(rows, columns, throw_if_failed(giwa::time_on(stream, [&] { return softmax(stream, x, y); })).median);

  std::vector<fp16> first_rows(4 * columns), first_turned(4 * columns);
  throw_if_failed(giwa::to_host<fp16>(stream, tensor_view<const fp16, 1>(out.data(), {4 * columns}), first_rows));
  throw_if_failed(giwa::to_host(stream, turned, first_turned));
  return right(first_rows, first_turned, columns);
}

bool run_on_cpu() {
  constexpr int64 rows = 512, columns = 8192;
  std::vector<fp16> in(rows * columns), out(in.size()), turned(4 * columns);
  throw_if_failed(giwa::for_all(giwa::host, rows * columns, fill_logits{in.data()}));
  const auto start = std::chrono::steady_clock::now();
  call_both(giwa::host, in.data(), out.data(), turned.data(), rows, columns);
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  report(rows, columns, time.count());
  out.resize(4 * columns);
  return right(out, turned, columns);
}

int main() try {
  const giwa::device_choice choice = giwa::choose_device();
  show_the_algebra();
  const bool good = choice.on_gpu() ? run_on_gpu() : run_on_cpu();
  std::printf("device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  std::printf("check:  %s\n", good ? "every row adds up to 1, the transposed view gives the same bits" : "FAILED");
  return good ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
