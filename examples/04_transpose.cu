// SPDX-License-Identifier: MIT
// Transposes matrices of 4-byte and 2-byte elements at the speed of a copy.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/04_transpose.cu -o 04_transpose
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: transpose.cuh.
//
// What it teaches, in transpose.cuh: with a tile in shared memory both the reads and the writes run along rows. load() and
// store() take any view, so a transpose with any strides has three lines. How a layout avoids bank conflicts, and how to
// write a layout. The last third of the speed needs 16-byte accesses on both sides and an order of the blocks that suits
// the memory. The same ops run in the host executor, where a debugger can follow a thread.
//
// Expected output, with the figures of an H200, 2026-11-21:
//   fp32, 16384 x 16384   0.522 ms, 4114 GB/s, 0.97 of a copy's speed
//   fp16, 16384 x 16384   0.265 ms, 4046 GB/s, 0.98 of a copy's speed
//   fp32, 10007 x 9973    0.290 ms, 2753 GB/s, 0.67 of a copy's speed
//   fp16, 10007 x 9973    0.193 ms, 2074 GB/s, 0.54 of a copy's speed
//   device: NVIDIA H200
//   check:  every element of all matrices is at its new position
#include "transpose.cuh"

#include <giwa/giwa.cuh>
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>

#include <chrono>
#include <cstdio>
#include <vector>

using giwa::int64;
using giwa::throw_if_failed;

// Element i of the matrix that is transposed, as bits.
template <class T>
GIWA_HOST_DEVICE T element(int64 i) {
  const giwa::uint32 word = giwa::philox{2026}(static_cast<giwa::uint64>(i)).word[0];
  T value;
  __builtin_memcpy(static_cast<void*>(&value), &word, sizeof value);
  return value;
}
template <class T>
struct fill {
  T* to;
  GIWA_HOST_DEVICE void operator()(int64 i) const { to[i] = element<T>(i); }
};

// Compares bits, because a NaN is not equal to itself.
template <class T>
int64 count_wrong(const std::vector<T>& out, int64 rows, int64 columns) {
  int64 wrong = 0;
  for (int64 row = 0; row < rows; ++row)
    for (int64 column = 0; column < columns; ++column) {
      const T expected = element<T>(row * columns + column);
      wrong += __builtin_memcmp(&out[static_cast<std::size_t>(column * rows + row)], &expected, sizeof expected) != 0;
    }
  return wrong;
}

template <class T>
int64 run_on_gpu(const char* type, int64 rows, int64 columns) {
  const int64 n = rows * columns, bytes = 2 * n * int64{sizeof(T)};
  const giwa::stream stream = throw_if_failed(giwa::stream::create());
  auto in = throw_if_failed(giwa::device_array<T>::allocate(stream, n));
  auto out = throw_if_failed(giwa::device_array<T>::allocate(stream, n));
  throw_if_failed(giwa::for_all(stream, n, fill<T>{in.data()}));

  const giwa::tensor_view<const T, 2> from{in.data(), {rows, columns}};
  const giwa::tensor_view<T, 2> to{out.data(), {columns, rows}};
  const double copy =
      throw_if_failed(giwa::time_on(stream, [&] {
        return giwa::to_status(cudaMemcpyAsync(out.data(), in.data(), static_cast<std::size_t>(n) * sizeof(T),
                                               cudaMemcpyDeviceToDevice, stream));
      })).median;
  const double ms = throw_if_failed(giwa::time_on(stream, [&] { return tiled::transpose(stream, from, to); })).median;
  std::printf("%s, %5lld x %-5lld   %.3f ms, %.0f GB/s, %.2f of a copy's speed\n", type, static_cast<long long>(rows),
              static_cast<long long>(columns), ms, static_cast<double>(bytes) * 1e-6 / ms, copy / ms);

  std::vector<T> result(static_cast<std::size_t>(n));
  throw_if_failed(giwa::to_host(stream, out, result));
  return count_wrong(result, rows, columns);
}

// Runs the threads of the op one by one, for a debugger.
template <class T>
int64 run_on_cpu(const char* type, int64 rows, int64 columns) {
  std::vector<T> in(static_cast<std::size_t>(rows * columns)), out(in.size());
  throw_if_failed(giwa::for_all(giwa::host, rows * columns, fill<T>{in.data()}));
  const auto start = std::chrono::steady_clock::now();
  throw_if_failed(tiled::transpose(giwa::host, giwa::tensor_view<const T, 2>{in.data(), {rows, columns}},
                                   giwa::tensor_view<T, 2>{out.data(), {columns, rows}}));
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  std::printf("%s, %5lld x %-5lld   %.3f ms in the host executor\n", type, static_cast<long long>(rows),
              static_cast<long long>(columns), time.count());
  return count_wrong(out, rows, columns);
}

int main() try {
  const giwa::device_choice choice = giwa::choose_device();
  int64 wrong = 0;
  if (choice.on_gpu()) {
    wrong += run_on_gpu<float>("fp32", 16384, 16384);
    wrong += run_on_gpu<giwa::fp16>("fp16", 16384, 16384);
    wrong += run_on_gpu<float>("fp32", 10007, 9973);
    wrong += run_on_gpu<giwa::fp16>("fp16", 10007, 9973);
  } else {
    wrong += run_on_cpu<float>("fp32", 512, 384);
    wrong += run_on_cpu<giwa::fp16>("fp16", 512, 384);
    wrong += run_on_cpu<float>("fp32", 331, 517);
    wrong += run_on_cpu<giwa::fp16>("fp16", 331, 517);
  }
  std::printf("device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  if (!choice.on_gpu()) std::printf("        %s\n", choice.found.advice);
  if (wrong == 0)
    std::printf("check:  every element of all matrices is at its new position\n");
  else
    std::printf("check:  FAILED, %lld elements are wrong\n", static_cast<long long>(wrong));
  return wrong == 0 ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
