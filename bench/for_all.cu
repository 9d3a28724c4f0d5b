// SPDX-License-Identifier: MIT
// c = a + b: the forms of giwa::for_all compared with a plain kernel, CUB's DeviceFor::Bulk and DeviceTransform, and Thrust.
#include "alternate.hpp"
#include "random.hpp"

#include <cuda_fp16.h>
#include <thrust/execution_policy.h>
#include <thrust/transform.h>
#include <cub/device/device_for.cuh>
#include <cub/device/device_transform.cuh>

namespace {

using giwa::int64;

struct add {
  template <class T>
  GIWA_HOST_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};

template <class T>
struct add_at {
  const T* a;
  const T* b;
  T* c;
  GIWA_HOST_DEVICE void operator()(int64 i) const { c[i] = a[i] + b[i]; }
};

/// The same at a row and a column of a matrix; from a rank alone it has to divide.
template <class T>
struct add_at_2d {
  add_at<T> body;
  int64 columns;
  GIWA_HOST_DEVICE void operator()(giwa::index<2> i) const { body(i[0] * columns + i[1]); }
  GIWA_HOST_DEVICE void operator()(int64 rank) const {
    const int64 row = rank / columns, column = rank % columns;
    body(row * columns + column);
  }
};

template <class T>
__global__ void __launch_bounds__(256) plain_add(int64 n, const T* a, const T* b, T* c) {
  const int64 i = static_cast<int64>(blockIdx.x) * 256 + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

template <class T>
struct buffers {
  giwa::device_array<T> a, b, c;
};

/// Sums must agree with a + b everywhere; `wrong` counts the elements that do not.
template <class T>
struct verify {
  const T *a, *b, *c;
  int* wrong;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
#if defined(__CUDA_ARCH__)
    if (!(c[i] == static_cast<T>(a[i] + b[i]))) atomicAdd(wrong, 1);
#else
    static_cast<void>(i);
#endif
  }
};

template <class T>
std::shared_ptr<std::vector<buffers<T>>> make_buffers(int64 n, int sets) {
  auto data = std::make_shared<std::vector<buffers<T>>>();
  for (int s = 0; s < sets; ++s) {
    data->push_back({bench::require(giwa::device_array<T>::allocate(nullptr, n)),
                     bench::require(giwa::device_array<T>::allocate(nullptr, n)),
                     bench::require(giwa::device_array<T>::allocate(nullptr, n))});
    const auto seed = static_cast<giwa::uint64>(s);
    bench::require(giwa::for_all(nullptr, n, bench::fill_uniform<T>{data->back().a.data(), giwa::philox{seed, 0}}));
    bench::require(giwa::for_all(nullptr, n, bench::fill_uniform<T>{data->back().b.data(), giwa::philox{seed, 1}}));
  }
  return data;
}

/// Every contender has to be right before it is fast.
template <class T>
void require_right(const std::vector<bench::contest::contender>& contenders, buffers<T>& d, int64 n) {
  auto wrong = bench::require(giwa::device_array<int>::allocate(nullptr, 1));
  for (const auto& c : contenders) {
    bench::require(cudaMemsetAsync(d.c.data(), 0xff, static_cast<std::size_t>(n) * sizeof(T), nullptr));
    bench::require(cudaMemsetAsync(wrong.data(), 0, sizeof(int), nullptr));
    c.run(0);
    bench::require(giwa::for_all(nullptr, n, verify<T>{d.a.data(), d.b.data(), d.c.data(), wrong.data()}));
    std::vector<int> count(1);
    bench::require(giwa::to_host(nullptr, wrong, count));
    if (count[0] != 0) {
      std::fprintf(stderr, "%s: %d elements are wrong\n", c.name.c_str(), count[0]);
      std::exit(1);
    }
  }
}

template <class T>
std::shared_ptr<void> prepare(std::vector<bench::contest::contender>& contenders, int64 n, int sets) {
  const auto data = make_buffers<T>(n, sets);
  std::vector<buffers<T>>& d = *data;
  const std::function<void(int)> run[] = {
      [&d, n](int s) {
        bench::require(cub::DeviceFor::Bulk(n, add_at<T>{d[s].a.data(), d[s].b.data(), d[s].c.data()}));
      },
      [&d, n](int s) {
        bench::require(cub::DeviceTransform::Transform(cuda::std::make_tuple(d[s].a.data(), d[s].b.data()),
                                                       d[s].c.data(), n, add{}));
      },
      [&d, n](int s) {
        thrust::transform(thrust::cuda::par_nosync.on(nullptr), d[s].a.data(), d[s].a.data() + n, d[s].b.data(),
                          d[s].c.data(), add{});
      },
      [&d, n](int s) {
        plain_add<<<static_cast<unsigned>(giwa::ceil_div(n, 256)), 256, 0, nullptr>>>(n, d[s].a.data(), d[s].b.data(),
                                                                                      d[s].c.data());
      },
      [&d, n](int s) {
        bench::require(giwa::for_all(nullptr, n, add_at<T>{d[s].a.data(), d[s].b.data(), d[s].c.data()}));
      },
      [&d](int s) {
        bench::require(giwa::for_all(nullptr, giwa::elementwise{d[s].c, d[s].a, d[s].b}, add{}));
      },
  };
  for (std::size_t i = 0; i < contenders.size(); ++i) contenders[i].run = run[i];
  require_right(contenders, d[0], n);
  return data;
}

constexpr int64 columns = 8191;  // an odd width

std::shared_ptr<void> prepare_2d(std::vector<bench::contest::contender>& contenders, int64 rows, int sets) {
  const auto data = make_buffers<float>(rows * columns, sets);
  std::vector<buffers<float>>& d = *data;
  const auto body = [&d](int s) { return add_at_2d<float>{{d[s].a.data(), d[s].b.data(), d[s].c.data()}, columns}; };
  // Not cub::DeviceFor::ForEachInExtents: that of CCCL 3.0.1 did not come back from 32768 x 8191 in 20 s (2026-11-20).
  contenders[0].run = [body, rows](int s) { bench::require(cub::DeviceFor::Bulk(rows * columns, body(s))); };
  contenders[1].run = [body, rows](int s) {
    bench::require(giwa::for_all(nullptr, giwa::extents{rows, columns}, body(s)));
  };
  require_right(contenders, d[0], rows * columns);
  return data;
}

template <class T>
void add_contest(const char* type, int64 n) {
  const double bytes = 3.0 * static_cast<double>(n) * sizeof(T);
  const int sets = bytes < 1e9
                       ? static_cast<int>(giwa::ceil_div(static_cast<int64>(480e6), static_cast<int64>(bytes))) + 1
                       : 2;  // several times the L2 cache go by before a buffer comes again
  const int calls = bytes < 1e9 ? 20 : 1;
  bench::contest::add(std::make_shared<bench::contest>(
      std::string("add/") + type + "/" + std::to_string(n),
      std::vector<bench::contest::contender>{{"cub_device_for_bulk", "cub_device_for_bulk"},
                                             {"cub_device_transform", "cub_device_transform"},
                                             {"thrust_transform", "cub_device_transform"},
                                             {"plain_kernel", "cub_device_for_bulk"},
                                             {"giwa_for_all_index", "cub_device_for_bulk"},
                                             {"giwa_for_all_elementwise", "cub_device_transform"}},
      sets, calls, bytes, bench::device_seconds,
      [n, sets](std::vector<bench::contest::contender>& contenders) { return prepare<T>(contenders, n, sets); }));
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, [] {
    for (const int64 n : {int64{10'000'000}, int64{1} << 28}) {
      add_contest<__half>("fp16", n);
      add_contest<float>("fp32", n);
      add_contest<double>("fp64", n);
    }
    add_contest<__half>("fp16", int64{1} << 30);
    add_contest<float>("fp32", int64{1} << 29);
    constexpr int64 rows = 32768;
    bench::contest::add(std::make_shared<bench::contest>(
        "add_2d/fp32/" + std::to_string(rows) + "x" + std::to_string(columns),
        std::vector<bench::contest::contender>{{"cub_device_for_bulk_dividing", "cub_device_for_bulk_dividing"},
                                               {"giwa_for_all_extents", "cub_device_for_bulk_dividing"}},
        2, 1, 12.0 * rows * columns, bench::device_seconds,
        [](std::vector<bench::contest::contender>& contenders) { return prepare_2d(contenders, rows, 2); }));
  });
}
