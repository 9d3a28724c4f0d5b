// SPDX-License-Identifier: MIT
// Adds one to every element of an array in three ways: one thread for each element, a grid-stride loop, and for_all.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/00_increment.cu -o 00_increment
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
//
// What it teaches: index_in() returns this thread's index and checks its bounds. grid_stride() is correct for any grid.
// launch() takes a __global__ function and returns the reason if it refuses a call. for_all() needs only the size and also
// runs on the CPU. Arrays free their memory, and throw_if_failed() turns a status into an exception.
//
// Expected output, with the times of your machine:
//   one thread an element: 4.69 us a launch
//   grid-stride loop:      4.09 us a launch
//   for_all:               4.12 us a launch
//   device: NVIDIA H200
//   check:  1000003 elements incremented 909 times each, and none past the end
#include <giwa/giwa.cuh>
#include <giwa/host.hpp>

#include <chrono>
#include <cstdio>
#include <vector>

using giwa::int64;
using giwa::throw_if_failed;

// One thread for each element. The last block has more threads than elements, and the check excludes the extra threads.
__global__ void __launch_bounds__(256) increment(int* x, int64 n) {
  if (const auto i = giwa::index_in(n)) x[*i] += 1;
}

// Any number of threads shares the elements.
__global__ void __launch_bounds__(256) increment_in_strides(int* x, int64 n) {
  for (const int64 i : giwa::grid_stride(n)) x[i] += 1;
}

// The body for one element. for_all provides the threads, on a GPU or on the CPU, and checks the bounds.
struct increment_at {
  int* x;
  GIWA_HOST_DEVICE void operator()(int64 i) const { x[i] += 1; }
};

constexpr int64 n = 1'000'003;   // not a multiple of the block size
constexpr int64 past_end = 256;  // elements after the array, which must not change

// Increments the first n elements repeatedly and returns how often.
int run_on_gpu(std::vector<int>& data) {
  const giwa::stream stream = throw_if_failed(giwa::stream::create());
  giwa::device_array<int> x = throw_if_failed(giwa::to_device(stream, data));

  int launches = 0;
  const auto report = [&](const char* what, auto launch_once) {
    const auto counted = [&] {
      ++launches;
      return launch_once();
    };
    const giwa::timing t = throw_if_failed(giwa::time_on(stream, counted, /*warm_up=*/3, /*repeats=*/20));
    std::printf("%-22s %.2f us a launch\n", what, 1e3 * static_cast<double>(t.median));
  };

  const giwa::launch_config one_each{.grid = giwa::ceil_div(n, 256), .block = 256};
  report("one thread an element:", [&] { return giwa::launch(stream, one_each, increment, x.data(), n); });

  const giwa::launch_config full =
      throw_if_failed(giwa::fill_gpu(increment_in_strides));  // as many blocks as run at once
  report("grid-stride loop:", [&] { return giwa::launch(stream, full, increment_in_strides, x.data(), n); });

  report("for_all:", [&] { return giwa::for_all(stream, n, increment_at{x.data()}); });

  throw_if_failed(giwa::to_host(stream, x, data));  // waits for the stream
  return launches;
}

int run_on_cpu(std::vector<int>& data) {
  const int runs = 20;
  const auto start = std::chrono::steady_clock::now();
  for (int run = 0; run < runs; ++run) throw_if_failed(giwa::for_all(giwa::host, n, increment_at{data.data()}));
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
  std::printf("%-22s %.2f us a call\n", "for_all:", time.count() / runs);
  return runs;
}

int main() try {
  std::vector<int> data(n + past_end);
  for (int i = 0; int& x : data) x = i++;

  const giwa::device_choice choice = giwa::choose_device();
  const int times = choice.on_gpu() ? run_on_gpu(data) : run_on_cpu(data);

  int64 wrong = 0;
  for (int64 i = 0; i < n + past_end; ++i) wrong += data[i] != i + (i < n ? times : 0);

  std::printf("device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  if (!choice.on_gpu()) std::printf("        %s\n", choice.found.advice);
  if (wrong == 0)
    std::printf("check:  %lld elements incremented %d times each, and none past the end\n", static_cast<long long>(n),
                times);
  else
    std::printf("check:  FAILED, %lld elements are wrong\n", static_cast<long long>(wrong));
  return wrong == 0 ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
