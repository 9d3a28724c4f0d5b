// SPDX-License-Identifier: MIT
// Views of other libraries: an mdspan and DLPack's struct become a giwa::tensor_view, without a copy.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/28_mdspan.cu -o 28_mdspan
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
//
// What it teaches: an mdspan of any library with a plain pointer converts to a tensor_view with its strides, so pass
// the mdspan where a view is expected. For a function template that deduces the view's type, name the type. from_dlpack
// converts the structs that Python frameworks exchange. It first checks the kind of memory, element type, dimensions
// and strides, and returns a status for a tensor that does not fit.
//
// Expected output, with the times of your machine:
//   mdspan, column-major:   sums of rows are right
//   mdspan, every 2nd row:  sums of rows are right
//   DLPack:                 sums of rows are right
//   DLPack, as fp64:        giwa: invalid argument `tensor`: the bits of its elements must be those of the view (exactly 64, got 32)
//   DLPack, elsewhere:      giwa: invalid argument `tensor`: it must be in memory of CUDA (DLDeviceType) (exactly 2, got 10)
//   measured: 0.648 ms for 4096 x 1000
//   device: NVIDIA H200
#include <giwa/giwa.cuh>
#include <giwa/host.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cuda/std/mdspan>
#include <vector>

using giwa::int64, giwa::tensor_view, giwa::throw_if_failed;

constexpr int64 rows = 4096, columns = 1000;

struct row_sums {
  tensor_view<const float, 2> in;  // (rows, columns)
  float* out;
  GIWA_HOST_DEVICE void operator()(int64 row) const {
    out[row] = 0;
    for (int64 column = 0; column < in.extent(1); ++column) out[row] += in(row, column);
  }
};

// DLPack's struct, as dlpack.h has it; whoever has that header takes its DLTensor instead.
struct dl_tensor {
  void* data;
  struct {
    std::int32_t device_type, device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};

// x has (columns, rows) elements in memory, so that (row, column) is x[column * rows + row]. `run` makes the sums of a view's
// rows and brings them to the host; `place` is what from_dlpack asks for, and `device_type` DLPack's number of it.
template <class Run, class Place>
bool show(float* x, const Run& run, const Place& place, std::int32_t device_type) {
  bool right = true;
  const auto check = [&](const char* what, const std::vector<float>& sums, int64 step) {
    bool good = true;  // element i is i mod 7: all sums are exact
    for (std::size_t r = 0; r < sums.size(); ++r) {
      float sum = 0;
      for (int64 c = 0; c < columns; ++c) sum += static_cast<float>((c * rows + static_cast<int64>(r) * step) % 7);
      good = good && sum == sums[r];
    }
    std::printf("%-23s sums of rows are %s\n", what, good ? "right" : "WRONG");
    right = right && good;
  };
  const auto refused = [&](const char* what, const giwa::status& s) {
    std::printf("%-23s %s\n", what, giwa::format_status(s).c_str());
    right = right && s.code == giwa::status_code::invalid_argument;
  };

  using cuda::std::mdspan, cuda::std::dims;
  const mdspan<float, dims<2>, cuda::std::layout_left> turned(x, rows, columns);
  check("mdspan, column-major:", run(turned), 1);
  const cuda::std::layout_stride::mapping<dims<2>> second(dims<2>(rows / 2, columns),
                                                          cuda::std::array<int64, 2>{2, rows});
  check("mdspan, every 2nd row:", run(mdspan<float, dims<2>, cuda::std::layout_stride>(x, second)), 2);

  std::int64_t shape[] = {rows, columns}, strides[] = {1, rows};
  const dl_tensor tensor{x, {device_type, 0}, 2, {2, 32, 1}, shape, strides, 0};
  check("DLPack:", run(throw_if_failed(giwa::from_dlpack<const float, 2>(place, tensor))), 1);
  refused("DLPack, as fp64:", giwa::from_dlpack<const double, 2>(place, tensor).state);
  dl_tensor elsewhere = tensor;
  elsewhere.device.device_type = 10;  // ROCm
  refused("DLPack, elsewhere:", giwa::from_dlpack<const float, 2>(place, elsewhere).state);
  return right;
}

int main() try {
  std::vector<float> x(rows * columns);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7);
  const giwa::device_choice choice = giwa::choose_device();
  double ms = 0;  // of the last
  bool right = false;
  if (choice.on_gpu()) {
    const giwa::stream stream = throw_if_failed(giwa::stream::create());
    auto on_device = throw_if_failed(giwa::to_device(stream, x));
    const auto run = [&](tensor_view<const float, 2> view) {
      auto sums = throw_if_failed(giwa::device_array<float>::allocate(stream, view.extent(0)));
      const auto work = [&] { return giwa::for_all(stream, view.extent(0), row_sums{view, sums.data()}); };
      ms = throw_if_failed(giwa::time_on(stream, work)).median;
      std::vector<float> home(static_cast<std::size_t>(view.extent(0)));
      throw_if_failed(giwa::to_host(stream, sums, home));
      return home;
    };
    right = show(on_device.data(), run, throw_if_failed(giwa::current_device()), 2);
  } else {
    const auto run = [&](tensor_view<const float, 2> view) {
      std::vector<float> sums(static_cast<std::size_t>(view.extent(0)));
      const auto start = std::chrono::steady_clock::now();
      throw_if_failed(giwa::for_all(giwa::host, view.extent(0), row_sums{view, sums.data()}));
      ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      return sums;
    };
    right = show(x.data(), run, giwa::host, 1);
  }
  std::printf("measured: %.3f ms for %lld x %lld\n", ms, static_cast<long long>(rows), static_cast<long long>(columns));
  std::printf("device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
