// SPDX-License-Identifier: MIT
// Computes c = a + b for 10 000 000 elements in float and in double, and compares the GPU with the CPU.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/01_vector_add.cu -o 01_vector_add
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// Without -O3 the loops of the CPU are not optimised, and the comparison is meaningless.
//
// What it teaches: one body, `add`, runs on the GPU and on the threads of the CPU. elementwise{c, a, b} is the faster form
// for whole arrays. philox gives both sides the same random numbers. A fair comparison of a GPU with a CPU:
//  - The time of the GPU is the median of 15 rounds of 20 calls, between two events on the stream, after a warm-up.
//  - The calls rotate through sets of arrays of more than four times the L2 cache, so that memory is measured and not the
//    cache.
//  - The time of the CPU is the median of 9 calls by its clock, for a plain loop and for all threads. It has one set of
//    arrays; if they fit in a cache, this favours the CPU.
//  - Data that starts and ends in host memory must be copied. The copies are measured separately, and both ratios are
//    printed: with copies a GPU rarely wins for so little work. It pays if the data stays on the GPU.
//
// Expected output, with the figures of an H200 and its host, 2026-11-20:
//   c = a + b, 10000000 elements
//   float                               ms     GB/s
//     CPU  for_all, 16 threads            0.9653    124.3
//     CPU  plain loop                     9.3857     12.8
//     GPU  for_all, by index              0.0358   3354.7   70 % of the memory's peak
//     GPU  for_all, elementwise           0.0308   3896.1   81 % of the memory's peak
//     GPU  allocate, copy a and b in      9.5156      8.4
//     GPU  copy c out                     2.8405     14.1
//     CPU threads / GPU: 31.3 without copies, 0.08 with them
//   double …
//   device:   NVIDIA H200, sm_90a code; memory's peak 4814 GB/s
//   check:    every element of every sum is right
//   measured: float 0.0308 ms, 3896.1 GB/s; double 0.0582 ms, 4124.8 GB/s
#include <giwa/giwa.cuh>
#include <giwa/host.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <thread>
#include <vector>

using giwa::int64;
using giwa::throw_if_failed;

constexpr int64 n = 10'000'000;

// --- What is computed ---

// c[i] = a[i] + b[i], for the index form of for_all.
template <class T>
struct add {
  const T* a;
  const T* b;
  T* c;
  GIWA_HOST_DEVICE void operator()(int64 i) const { c[i] = a[i] + b[i]; }
};

// The same on values, for the elementwise form.
struct sum {
  template <class T>
  GIWA_HOST_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};

// Random inputs: element i depends on i alone, so the GPU and the CPU generate the same ones.
template <class T>
struct random_inputs {
  T* a;
  T* b;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    const giwa::philox for_a{/*seed=*/2026, /*stream=*/0}, for_b{2026, 1};
    a[i] = for_a.uniform<T>(i);
    b[i] = for_b.uniform<T>(i);
  }
};

template <class T>
void plain_loop(const T* a, const T* b, T* c) {
  for (int64 i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

// --- How it is measured ---

double gigabytes_per_second(int64 bytes, double ms) { return static_cast<double>(bytes) * 1e-6 / ms; }

void print_row(const char* what, int64 bytes, double ms, double peak = 0) {
  std::printf("  %-32s %9.4f %8.1f", what, ms, gigabytes_per_second(bytes, ms));
  if (peak > 0) std::printf("   %.0f %% of the memory's peak", 100 * gigabytes_per_second(bytes, ms) / peak);
  std::printf("\n");
}

// Milliseconds of one call by the CPU's clock.
template <class Work>
double milliseconds(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// The median of 9 calls after one to warm up.
template <class Work>
double median_milliseconds(Work work) {
  std::vector<double> all(9);
  work();
  for (double& ms : all) ms = milliseconds(work);
  return median(all);
}

struct outcome {
  int64 wrong = 0;  // elements
  double ms = 0;    // of the fastest way
};

// Compares with the result of the plain loop. IEEE 754 defines a single sum exactly, so all bits must be equal. Then fills c
// with NaN, so that an element that the next sum does not write is found.
template <class T>
int64 count_wrong(std::vector<T>& c, const std::vector<T>& expected) {
  int64 wrong = 0;
  for (int64 i = 0; i < n; ++i) wrong += !(c[i] == expected[i]);
  std::ranges::fill(c, std::numeric_limits<T>::quiet_NaN());
  return wrong;
}

// --- On the GPU ---

template <class T>
struct device_set {
  giwa::device_array<T> a, b, c;
};

// Sums on the GPU between arrays in GPU memory, and the copies for arrays in host memory.
template <class T>
outcome run_on_gpu(const giwa::device_properties& gpu, const std::vector<T>& a, const std::vector<T>& b,
                   const std::vector<T>& expected, double cpu_ms) {
  const int64 bytes = 3 * n * int64{sizeof(T)};
  const double peak = static_cast<double>(gpu.memory_bytes_per_second) * 1e-9;
  const giwa::stream stream = throw_if_failed(giwa::stream::create());
  const auto allocate = [&] { return throw_if_failed(giwa::device_array<T>::allocate(stream, n)); };
  outcome found;
  std::vector<T> c(n, std::numeric_limits<T>::quiet_NaN());

  std::vector<device_set<T>> sets(1 + giwa::ceil_div(4 * gpu.l2_bytes, bytes));
  for (device_set<T>& set : sets) {
    set = {allocate(), allocate(), throw_if_failed(giwa::to_device(stream, c))};
    throw_if_failed(giwa::for_all(stream, n, random_inputs<T>{set.a.data(), set.b.data()}));
  }

  std::size_t turn = 0;
  const auto measure = [&](const char* what, auto add_one_set) {
    const auto next = [&] { return add_one_set(sets[turn++ % sets.size()]); };
    const double ms = throw_if_failed(giwa::time_on(stream, next, /*warm_up=*/5, /*repeats=*/20)).median;
    print_row(what, bytes, ms, peak);
    found.ms = found.ms == 0 ? ms : std::min(found.ms, ms);
    for (device_set<T>& set : sets) {
      throw_if_failed(giwa::to_host(stream, set.c, c));
      found.wrong += count_wrong(c, expected);
      set.c = throw_if_failed(giwa::to_device(stream, c));  // NaN again
    }
  };
  measure("GPU  for_all, by index", [&](device_set<T>& set) {
    return giwa::for_all(stream, n, add<T>{set.a.data(), set.b.data(), set.c.data()});
  });
  measure("GPU  for_all, elementwise", [&](device_set<T>& set) {
    return giwa::for_all(stream, giwa::elementwise{set.c, set.a, set.b}, sum{});
  });

  // From host memory and back, with a wait for the stream after each part.
  std::vector<double> in, out;
  for (int round = 0; round < 10; ++round) {
    device_set<T> set;
    in.push_back(milliseconds([&] {
      set = {throw_if_failed(giwa::to_device(stream, a)), throw_if_failed(giwa::to_device(stream, b)), allocate()};
      throw_if_failed(giwa::synchronize(stream));
    }));
    throw_if_failed(giwa::for_all(stream, giwa::elementwise{set.c, set.a, set.b}, sum{}));
    throw_if_failed(giwa::synchronize(stream));
    out.push_back(milliseconds([&] { throw_if_failed(giwa::to_host(stream, set.c, c)); }));
    if (round == 0) in.clear(), out.clear();  // the warm-up
    found.wrong += count_wrong(c, expected);
  }
  print_row("GPU  allocate, copy a and b in", bytes / 3 * 2, median(in));
  print_row("GPU  copy c out", bytes / 3, median(out));
  std::printf("  CPU threads / GPU: %.1f without copies, %.2f with them\n", cpu_ms / found.ms,
              cpu_ms / (median(in) + found.ms + median(out)));
  return found;
}

// --- On the CPU, and together ---

// Sums in T, also on the GPU if there is one. Returns the time of the GPU, otherwise of the CPU.
template <class T>
outcome run(const giwa::device_choice& choice, const char* type) {
  const int64 bytes = 3 * n * int64{sizeof(T)};
  std::printf("%-32s %11s %8s\n", type, "ms", "GB/s");
  std::vector<T> a(n), b(n), expected(n), c(n, std::numeric_limits<T>::quiet_NaN());
  throw_if_failed(giwa::for_all(giwa::host, n, random_inputs<T>{a.data(), b.data()}));

  const double serial_ms = median_milliseconds([&] { plain_loop(a.data(), b.data(), expected.data()); });
  outcome found;
  found.ms = median_milliseconds([&] {
    throw_if_failed(giwa::for_all(giwa::host, n, add<T>{a.data(), b.data(), c.data()}));
  });
  found.wrong = count_wrong(c, expected);
  char threads[40];
  std::snprintf(threads, sizeof threads, "CPU  for_all, %u threads", std::thread::hardware_concurrency());
  print_row(threads, bytes, found.ms);
  print_row("CPU  plain loop", bytes, serial_ms);
  if (!choice.on_gpu()) return found;

  const outcome on_gpu = run_on_gpu(choice.found.properties, a, b, expected, found.ms);
  return {found.wrong + on_gpu.wrong, on_gpu.ms};
}

int main() try {
  const giwa::device_choice choice = giwa::choose_device();
  std::printf("c = a + b, %lld elements\n", static_cast<long long>(n));
#if !defined(__OPTIMIZE__)
  std::printf("Built without optimisation: the CPU's figures mean nothing. Compile with -O3.\n");
#endif
  const outcome in_float = run<float>(choice, "float");
  const outcome in_double = run<double>(choice, "double");

  if (choice.on_gpu()) {
    const giwa::environment& e = choice.found;
    std::printf("device:   %s, sm_%d%s code; memory's peak %.0f GB/s\n", e.properties.name, e.code.architecture,
                e.code.architecture == 90 && e.code.architecture_specific ? "a" : "",
                static_cast<double>(e.properties.memory_bytes_per_second) * 1e-9);
  } else {
    std::printf("device:   CPU. %s\n", choice.found.advice);
  }
  const int64 wrong = in_float.wrong + in_double.wrong;
  if (wrong == 0)
    std::printf("check:    every element of every sum is right\n");
  else
    std::printf("check:    FAILED, %lld elements are wrong\n", static_cast<long long>(wrong));
  std::printf("measured: float %.4f ms, %.1f GB/s; double %.4f ms, %.1f GB/s\n", in_float.ms,
              gigabytes_per_second(3 * n * 4, in_float.ms), in_double.ms,
              gigabytes_per_second(3 * n * 8, in_double.ms));
  return wrong == 0 ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
