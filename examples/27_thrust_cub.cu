// SPDX-License-Identifier: MIT
// giwa with Thrust and CUB: a vector of Thrust in giwa's calls, and a CUB collective in a kernel with giwa's loops.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/27_thrust_cub.cu -o 27_thrust_cub
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
//
// What it teaches: giwa takes a thrust::device_vector as a pointer and a size, by thrust::raw_pointer_cast; in the same
// way Thrust and CUB take a giwa::device_array, by data(). All of them take the same stream. In a kernel, giwa's loops
// assign the elements to the threads of a block, and CUB adds the threads' sums.
//
// Expected output, with the times of your machine; on a CPU the matrix is smaller, and plain loops sum it:
//   16384 x 4096 random numbers in a thrust::device_vector
//   mean, by thrust::reduce:             0.500049
//   means of rows, by cub::BlockReduce:  0.482521 to 0.519326
//   means of rows: 0.122 ms, 2197 GB/s
//   device: NVIDIA H200
//   check:  right
#include <thrust/device_vector.h>
#include <thrust/reduce.h>

#include <giwa/giwa.cuh>
#include <giwa/host.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cub/block/block_reduce.cuh>
#include <numeric>
#include <vector>

using giwa::int64, giwa::tensor_view, giwa::throw_if_failed;

constexpr int64 columns = 4096;
constexpr int threads = 256;

struct fill_uniform {
  float* out;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    out[i] = giwa::philox{7}.uniform<float>(static_cast<giwa::uint64>(i));
  }
};

// The mean of each row of x, (rows, columns); a block for each.
__global__ void __launch_bounds__(threads) row_means(tensor_view<const float, 2> x, float* means) {
  using reduce = cub::BlockReduce<float, threads>;
  __shared__ typename reduce::TempStorage shared;
  const int64 row = blockIdx.x;
  float own = 0;
  for (auto column : giwa::block_stride(x.extent(1))) own += x(row, column);
  const float all = reduce(shared).Sum(own);
  if (threadIdx.x == 0) means[row] = all / static_cast<float>(x.extent(1));
}

struct report {
  double mean;
  std::vector<float> of_rows;
  double ms;
};

report on_gpu(int64 rows) {
  const int64 size = rows * columns;
  const giwa::stream stream = throw_if_failed(giwa::stream::create());
  thrust::device_vector<float> numbers(static_cast<std::size_t>(size));
  throw_if_failed(giwa::synchronize(cudaStreamLegacy));  // it is filled with zeros there, and our stream does not wait
  float* const x = thrust::raw_pointer_cast(numbers.data());
  throw_if_failed(giwa::for_all(stream, size, fill_uniform{x}));
  const auto policy = thrust::cuda::par_nosync.on(stream);
  const double sum = thrust::reduce(policy, numbers.begin(), numbers.end(), 0.0);  // waits: the result is on the host

  auto means = throw_if_failed(giwa::device_array<float>::allocate(stream, rows));
  const auto work = [&] {
    return giwa::launch(stream, {.grid = rows, .block = threads}, row_means,
                        tensor_view<const float, 2>{x, {rows, columns}}, means.data());
  };
  report r{sum / static_cast<double>(size), std::vector<float>(static_cast<std::size_t>(rows)), 0};
  r.ms = throw_if_failed(giwa::time_on(stream, work)).median;
  throw_if_failed(giwa::to_host(stream, means, r.of_rows));
  return r;
}

// Where there is no GPU, Thrust and CUB have no part.
report on_cpu(int64 rows) {
  std::vector<float> x(static_cast<std::size_t>(rows * columns)), means(static_cast<std::size_t>(rows));
  throw_if_failed(giwa::for_all(giwa::host, x.size(), fill_uniform{x.data()}));
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t r = 0; r < means.size(); ++r)
    means[r] = std::accumulate(&x[r * columns], &x[r * columns] + columns, 0.0f) / columns;
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  const double sum = std::accumulate(x.begin(), x.end(), 0.0);
  return {sum / static_cast<double>(x.size()), means, time.count()};
}

int main() try {
  const giwa::device_choice choice = giwa::choose_device();
  const int64 rows = choice.on_gpu() ? 16384 : 256;
  const report r = choice.on_gpu() ? on_gpu(rows) : on_cpu(rows);
  const auto [least, most] = std::minmax_element(r.of_rows.begin(), r.of_rows.end());
  const double low = static_cast<double>(*least), high = static_cast<double>(*most);
  std::printf("%lld x %lld random numbers%s\n", static_cast<long long>(rows), static_cast<long long>(columns),
              choice.on_gpu() ? " in a thrust::device_vector" : ", without Thrust and CUB");
  std::printf("%-37s%f\n", choice.on_gpu() ? "mean, by thrust::reduce:" : "mean:", r.mean);
  std::printf("%-37s%f to %f\n", choice.on_gpu() ? "means of rows, by cub::BlockReduce:" : "means of rows:", low, high);
  std::printf("means of rows: %.3f ms, %.0f GB/s\n", r.ms, static_cast<double>(rows * columns * 4) * 1e-6 / r.ms);
  std::printf("device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");

  // The same numbers, by the definition: element i of the seed, whoever computes it.
  double sum = 0;
  for (int64 i = 0; i < columns; ++i)
    sum += static_cast<double>(giwa::philox{7}.uniform<float>(static_cast<giwa::uint64>(i)));
  const bool right = std::abs(r.mean - 0.5) < 1e-3 && low > 0.46 && high < 0.54 &&
                     std::abs(static_cast<double>(r.of_rows[0]) - sum / columns) < 1e-5;
  std::printf("check:  %s\n", right ? "right" : "WRONG");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
