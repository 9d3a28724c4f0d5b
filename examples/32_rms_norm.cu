// SPDX-License-Identifier: MIT
// RMS norm of the rows of a matrix: a reduction over a block for each row.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/32_rms_norm.cu -o 32_rms_norm
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: y = x / sqrt(mean(x^2) + epsilon) * weight needs a sum of the whole row before any element is written.
// reduce_block() gives it to all threads: shuffles in each warp, then one number of each warp through shared memory. A block
// takes a row of any length in strides. It reads the row twice, the second time from the cache, so memory moves the
// bytes of a copy. The cookbook has the same norm with a warp for each row, for short rows.
//
// Expected output; the times are those of your machine, and on a CPU, where threads are simulated, there are fewer rows:
//   16384 rows of 4096            ms      GB/s
//   copy                     0.133      4025
//   rms norm                 0.229      2342
//   largest error 2.1e-07 of the largest element
//   device: NVIDIA H200
//   check:  right
#include "support/place.cuh"

#include <giwa/host_executor.cuh>

#include <cmath>

using giwa::int64, giwa::throw_if_failed;

// out = in / sqrt(mean of the row's squares + epsilon) * weight. A block for each row.
struct rms_norm {
  struct params {
    giwa::tensor_view<const float, 2> in;      // (rows, columns)
    giwa::tensor_view<const float, 1> weight;  // (columns)
    giwa::tensor_view<float, 2> out;           // (rows, columns)
    float epsilon;
  };
  struct shared_storage {
    giwa::block_partials<float> partials;
  };
  static constexpr int max_threads = 256, min_blocks = 4;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int64 row = block.block_rank(), columns = p.in.extent(1);
    float sum = 0;
    for (const int64 c : giwa::block_stride(block, columns)) sum += p.in(row, c) * p.in(row, c);
    sum = giwa::reduce_block(block, sum, s.partials);  // of all threads, for all threads
    const float factor = 1 / std::sqrt(sum / static_cast<float>(columns) + p.epsilon);
    for (const int64 c : giwa::block_stride(block, columns)) p.out(row, c) = p.in(row, c) * factor * p.weight(c);
  }
};

struct copy_element {
  GIWA_HOST_DEVICE float operator()(float x) const { return x; }
};

template <class Place>
bool run(const Place& place) {
  constexpr float epsilon = 1e-6f;
  const int64 rows = Place::is_gpu ? 16384 : 64, columns = Place::is_gpu ? 4096 : 1000;
  auto in = place.template make<float>(rows * columns), out = place.template make<float>(rows * columns);
  auto weight = place.template make<float>(columns);
  throw_if_failed(giwa::for_all(place.where(), rows * columns, example::fill<float>{in.data(), 1}));
  throw_if_failed(giwa::for_all(place.where(), columns, example::fill<float>{weight.data(), 2}));

  std::printf("%lld rows of %-15lld ms      GB/s\n", static_cast<long long>(rows), static_cast<long long>(columns));
  const auto time = [&](const char* name, const auto& work) {
    const double ms = place.milliseconds(work);
    std::printf("%-20s  %8.3f  %8.0f\n", name, ms, static_cast<double>(8 * rows * columns) * 1e-6 / ms);
  };
  const giwa::tensor_view<float, 1> from(in.data(), {rows * columns}), to(out.data(), {rows * columns});
  time("copy", [&] { return giwa::for_all(place.where(), giwa::elementwise{to, from}, copy_element{}); });
  time("rms norm", [&] {
    return giwa::launch(
        place.where(), {.grid = rows, .block = rms_norm::max_threads}, rms_norm{},
        {{in.data(), {rows, columns}}, {weight.data(), {columns}}, {out.data(), {rows, columns}}, epsilon});
  });

  const std::vector<float> x = place.get(in), w = place.get(weight), y = place.get(out);
  double largest = 0, error = 0;
  for (int64 row = 0; row < rows; ++row) {
    const auto at = [&](int64 c) { return static_cast<std::size_t>(row * columns + c); };
    double sum = 0;
    for (int64 c = 0; c < columns; ++c) sum += double{x[at(c)]} * double{x[at(c)]};
    const double factor = 1 / std::sqrt(sum / static_cast<double>(columns) + double{epsilon});
    for (int64 c = 0; c < columns; ++c) {
      const double expected = double{x[at(c)]} * factor * double{w[static_cast<std::size_t>(c)]};
      const double e = std::abs(double{y[at(c)]} - expected);
      largest = std::max(largest, std::abs(expected));
      error = e <= error ? error : e;  // also keeps a NaN
    }
  }
  std::printf("largest error %.1e of the largest element\n", error / largest);
  return error <= 1e-6 * largest;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
