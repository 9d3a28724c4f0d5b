// SPDX-License-Identifier: MIT
// giwa::softmax of rows of 256 to 131072 elements, compared with a device-to-device copy of the same bytes.
#include "alternate.hpp"
#include "random.hpp"

#include <giwa/softmax.cuh>

#include <cmath>

namespace {

using giwa::int64;

template <class T>
struct buffers {
  giwa::device_array<T> in, out;
};

/// Some rows against the CPU in double: results, and that every one was written.
template <class T>
void require_right(const buffers<T>& d, int64 rows, int64 columns) {
  for (const int64 row : {int64{0}, rows / 3, rows - 1}) {
    std::vector<T> x(static_cast<std::size_t>(columns)), y(x.size());
    const std::size_t bytes = x.size() * sizeof(T);
    bench::require(cudaMemcpy(x.data(), d.in.data() + row * columns, bytes, cudaMemcpyDeviceToHost));
    bench::require(cudaMemcpy(y.data(), d.out.data() + row * columns, bytes, cudaMemcpyDeviceToHost));
    double max = -1e300, sum = 0, worst = 0;
    for (const T v : x) max = std::max(max, giwa::convert<double>{}(v));
    for (const T v : x) sum += std::exp(giwa::convert<double>{}(v)-max);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = std::exp(giwa::convert<double>{}(x[i]) - max) / sum;
      const double off = std::abs(giwa::convert<double>{}(y[i]) - expected);
      worst = std::max(worst, std::isnan(off) ? 1e9 : off / (expected + 1e-4));
    }
    const double unit = std::ldexp(1.0, -giwa::precision_of<T>::significand_bits);
    if (!(worst < 1.1 * unit + 4e-6)) {
      std::fprintf(stderr, "softmax: row %lld of %lld columns is off by %g\n", static_cast<long long>(row),
                   static_cast<long long>(columns), worst);
      std::exit(1);
    }
  }
}

template <class T>
std::shared_ptr<void> prepare(std::vector<bench::contest::contender>& contenders, int64 rows, int64 columns, int sets) {
  const auto data = std::make_shared<std::vector<buffers<T>>>();
  const int64 n = rows * columns;
  for (int s = 0; s < sets; ++s) {
    data->push_back({bench::require(giwa::device_array<T>::allocate(nullptr, n)),
                     bench::require(giwa::device_array<T>::allocate(nullptr, n))});
    const giwa::philox random(static_cast<giwa::uint64>(s));
    bench::require(giwa::for_all(nullptr, n, bench::fill_normal<T>{data->back().in.data(), random, 4}));
    bench::require(cudaMemsetAsync(data->back().out.data(), 0xff, static_cast<std::size_t>(n) * sizeof(T), nullptr));
  }
  std::vector<buffers<T>>& d = *data;
  contenders[0].run = [&d, n](int s) {
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
    bench::require(cudaMemcpyAsync(d[s].out.data(), d[s].in.data(), bytes, cudaMemcpyDeviceToDevice, nullptr));
  };
  contenders[1].run = [&d, rows, columns](int s) {
    bench::require(giwa::softmax(nullptr, giwa::tensor_view<const T, 2>(d[s].in.data(), {rows, columns}),
                                 giwa::tensor_view<T, 2>(d[s].out.data(), {rows, columns})));
  };
  contenders[1].run(0);
  bench::require(cudaDeviceSynchronize());
  require_right(d[0], rows, columns);
  return data;
}

template <class T>
void add_contest(const char* type, int64 columns) {
  constexpr int64 bytes_read = int64{1} << 30;  // far more than the L2 cache
  const int64 rows = bytes_read / (columns * static_cast<int64>(sizeof(T)));
  bench::contest::add(std::make_shared<bench::contest>(
      std::string("softmax/") + type + "/" + std::to_string(rows) + "x" + std::to_string(columns),
      std::vector<bench::contest::contender>{{"copy", "copy"}, {"giwa_softmax", "copy"}}, 2, 2,
      2.0 * static_cast<double>(rows * columns) * sizeof(T), bench::device_seconds,
      [rows, columns](std::vector<bench::contest::contender>& contenders) {
        return prepare<T>(contenders, rows, columns, 2);
      }));
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, [] {
    for (const int64 columns : {256, 512, 1000, 1001, 1024, 2048, 4096, 8192, 16384, 32768, 50257, 131072}) {
      add_contest<float>("fp32", columns);
      add_contest<giwa::fp16>("fp16", columns);
      add_contest<giwa::bf16>("bf16", columns);
    }
  });
}
