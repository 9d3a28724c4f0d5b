// SPDX-License-Identifier: MIT
// Three kernels under NVIDIA's two profilers and the program's own clock: one fast, one slow, and a softmax.
//
//   nvcc -std=c++20 -O3 -DGIWA_ENABLE_NVTX -gencode arch=compute_90a,code=sm_90a -Iinclude examples/26_profiling.cu -o 26_profiling
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
// Without GIWA_ENABLE_NVTX the program runs too, but profilers show no names.
//
// What it teaches: which tool answers which question. giwa::time_on measures the time of a call. The bytes that must
// move, divided by that time and compared with the memory's peak, show whether a kernel can be faster. If it can,
// Nsight Systems shows when the GPU waits and for what, and Nsight Compute why a kernel is slow:
//
//   nsys profile --trace=cuda,nvtx --output=timeline ./26_profiling
//   nsys stats --report cuda_gpu_kern_sum,nvtx_gpu_proj_sum timeline.nsys-rep
//
// The median of a kernel there is the time printed here, minus one or two microseconds that events add. All kernels of
// giwa are named entry<op>, and the op distinguishes them: elementwise_op, for_all_op, row_op. named_range names parts
// of the program, and nvtx_gpu_proj_sum lists GPU time by these names. Then profile one launch in one range:
//
//   metrics=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,dram__bytes_read.sum
//   metrics=$metrics,dram__bytes_write.sum,l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio
//   ncu --nvtx --nvtx-include "turned copy/" --launch-count 1 --clock-control none --metrics $metrics ./26_profiling
//
// dram__throughput should be near the share of the peak printed here, and the bytes near those that must move; more
// bytes mean that something is read twice. A warp's load of 32 neighbouring floats takes 4 sectors of 32 bytes; a load
// of 16 bytes per thread takes 16. The load of the turned copy takes 32, one for each thread: the caches limit it, not
// the memory. On an H200 ncu reports 955 us, 23 % of the peak, 537 MB read, 522 MB written and 32 sectors. --set full
// in place of --metrics shows everything; read the sections Speed Of Light, Memory Workload Analysis and Occupancy
// first.
//
// Expected output, with the figures of your machine; on a CPU the matrix is smaller:
//   16384 x 8192 floats, each read once and written once
//     doubled         0.2579 ms   4163.6 GB/s   86 % of the memory's peak
//     turned copy     0.9453 ms   1135.9 GB/s   24 % of the memory's peak
//     softmax         0.2672 ms   4019.0 GB/s   83 % of the memory's peak
//   device: NVIDIA H200
//   check:  right
#include "support/place.cuh"

#include <cmath>

using giwa::int64, giwa::throw_if_failed;
using matrix = giwa::tensor_view<const float, 2>;

struct doubled {
  GIWA_HOST_DEVICE float operator()(float x) const { return 2 * x; }
};

// Neighbouring threads write neighbouring elements, but read elements of different rows. Example 04 fixes this with a tile.
struct turned_copy {
  matrix in;                        // (rows, columns)
  giwa::tensor_view<float, 2> out;  // (columns, rows)
  GIWA_HOST_DEVICE void operator()(giwa::index<2> at) const { out[at] = in(at[1], at[0]); }
};

double largest_error_of_softmax(const matrix& in, const matrix& out, int64 rows) {
  double worst = 0;
  for (int64 row = 0; row < rows; ++row) {
    double sum = 0;  // the inputs lie in [-2, 2): no maximum has to be taken off
    for (int64 column = 0; column < in.extent(1); ++column) sum += std::exp(double{in(row, column)});
    for (int64 column = 0; column < in.extent(1); ++column) {
      const double expected = std::exp(double{in(row, column)}) / sum;
      const double error = std::abs(double{out(row, column)} / expected - 1);
      worst = error <= worst ? worst : error;  // NaN too
    }
  }
  return worst;
}

template <class Place>
bool run(const Place& place) {
  const int64 rows = Place::is_gpu ? 16384 : 512, columns = Place::is_gpu ? 8192 : 1024, n = rows * columns;
  auto in = place.template make<float>(n), out = place.template make<float>(n);
  throw_if_failed(giwa::for_all(place.where(), n, example::fill<float>{in.data(), 1}));
  const std::vector<float> x = place.get(in);
  double peak = 0;  // bytes a second
  if constexpr (Place::is_gpu)
    peak = static_cast<double>(
        throw_if_failed(giwa::properties_of(throw_if_failed(giwa::current_device()))).memory_bytes_per_second);

  std::printf("%lld x %lld floats, each read once and written once\n", static_cast<long long>(rows),
              static_cast<long long>(columns));
  const auto measured = [&](const char* name, const auto& work) {
    const giwa::named_range range(name);
    const double ms = place.milliseconds(work), rate = 2.0 * sizeof(float) * static_cast<double>(n) / (ms * 1e-3);
    std::printf("  %-12s %9.4f ms %8.1f GB/s", name, ms, rate * 1e-9);
    if (peak > 0) std::printf("  %3.0f %% of the memory's peak", 100 * rate / peak);
    std::printf("\n");
    return place.get(out);
  };

  bool right = true;
  const std::vector<float> twice = measured("doubled", [&] {
    return giwa::for_all(place.where(), giwa::elementwise{out, in}, doubled{});
  });
  for (std::size_t i = 0; i < x.size(); ++i) right = right && twice[i] == 2 * x[i];

  const std::vector<float> turned = measured("turned copy", [&] {
    return giwa::for_all(place.where(), giwa::extents{columns, rows},
                         turned_copy{{in.data(), {rows, columns}}, {out.data(), {columns, rows}}});
  });
  const matrix x_view(x.data(), {rows, columns}), turned_view(turned.data(), {columns, rows});
  for (int64 row = 0; row < rows; ++row)
    for (int64 column = 0; column < columns; ++column) right = right && turned_view(column, row) == x_view(row, column);

  const std::vector<float> weights = measured("softmax", [&] {
    return giwa::softmax(place.where(), matrix(in.data(), {rows, columns}),
                         giwa::tensor_view<float, 2>(out.data(), {rows, columns}));
  });
  return largest_error_of_softmax(x_view, matrix(weights.data(), {rows, columns}), 16) < 1e-5 && right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
