// SPDX-License-Identifier: MIT
// The matrix product of examples/matmul, step by step, compared with cuBLAS.
#include "alternate.hpp"
#include "random.hpp"

#include "matmul/fp32.cuh"
#include "matmul/register_tile.cuh"
#include "matmul/wgmma.cuh"

#include <cublas_v2.h>

#include <cmath>

namespace {

using giwa::int64;

struct size {
  int64 m, n, k;
  int64 lda, ldb, ldc;  // leading dimensions, at least k, n and n
};

template <class T>
struct buffers {
  giwa::device_array<T> a, b, c;
  size s;
  giwa::device_array<unsigned char> workspace{};  // of step 6, for fp32
  giwa::tensor_view<const T, 2> view_a() const { return {a.data(), {s.m, s.k}, {s.lda, 1}}; }
  giwa::tensor_view<const T, 2> view_b() const { return {b.data(), {s.k, s.n}, {s.ldb, 1}}; }
  giwa::tensor_view<T, 2> view_c() { return {c.data(), {s.m, s.n}, {s.ldc, 1}}; }
};

/// Counts the wrong ones among elements that a random generator picks, by a product in double.
template <class T>
struct verify {
  giwa::tensor_view<const T, 2> a, b;
  giwa::tensor_view<T, 2> c;
  int* wrong;
  GIWA_HOST_DEVICE void operator()(int64 sample) const {
    const giwa::philox random(7);
    const auto at = static_cast<giwa::uint64>(sample);
    const auto pick = [&](giwa::uint64 i, int64 n) {
      return static_cast<int64>(random.uniform<double>(i) * static_cast<double>(n));
    };
    const int64 row = pick(2 * at, c.extent(0)), column = pick(2 * at + 1, c.extent(1));
    double sum = 0, magnitude = 0;
    for (int64 k = 0; k < a.extent(1); ++k) {
      const double term = giwa::convert<double>{}(a(row, k)) * giwa::convert<double>{}(b(k, column));
      sum += term;
      magnitude += term < 0 ? -term : term;
    }
    const double got = giwa::convert<double>{}(c(row, column)), error = got < sum ? sum - got : got - sum;
    const double unit = sizeof(T) == 4 ? 0 : giwa::precision_of<T>::significand_bits == 11 ? 0x1p-11 : 0x1p-8;
    // One rounding of the result, and the tensor cores' sums in fp32. Of normally distributed fp32 numbers a plain sum is
    // typically off by 2^-24 of the magnitude, whatever k, and a product in fp16 or tf32 by 2^-18 where k is 8192.
    const double of_sum = sizeof(T) == 4 ? 0x1p-20 : 0x1p-18;
    const bool right = error <= 1.01 * unit * (sum < 0 ? -sum : sum) + of_sum * magnitude;
#if defined(__CUDA_ARCH__)
    if (!right) atomicAdd(wrong, 1);
#else
    static_cast<void>(right);
#endif
  }
};

template <class T>
constexpr cudaDataType_t cublas_type() {
  return std::is_same_v<T, float> ? CUDA_R_32F : std::is_same_v<T, giwa::fp16> ? CUDA_R_16F : CUDA_R_16BF;
}

/// Column by column, as cuBLAS counts, c is b a.
template <class T>
void cublas_product(cublasHandle_t handle, buffers<T>& d) {
  const float one = 1, zero = 0;
  const auto i = [](int64 x) { return static_cast<int>(x); };
  if (cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, i(d.s.n), i(d.s.m), i(d.s.k), &one, d.b.data(), cublas_type<T>(),
                   i(d.s.ldb), d.a.data(), cublas_type<T>(), i(d.s.lda), &zero, d.c.data(), cublas_type<T>(),
                   i(d.s.ldc), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS) {
    std::fprintf(stderr, "cublasGemmEx failed\n");
    std::exit(1);
  }
}

template <class T>
std::shared_ptr<void> prepare(std::vector<bench::contest::contender>& contenders, const size& s, int sets) {
  struct state {
    std::vector<buffers<T>> sets;
    cublasHandle_t handle = nullptr;
    ~state() { cublasDestroy(handle); }
  };
  const auto data = std::make_shared<state>();
  if (cublasCreate(&data->handle) != CUBLAS_STATUS_SUCCESS) std::exit(1);
  for (int i = 0; i < sets; ++i) {
    data->sets.push_back({bench::require(giwa::device_array<T>::allocate(nullptr, s.m * s.lda)),
                          bench::require(giwa::device_array<T>::allocate(nullptr, s.k * s.ldb)),
                          bench::require(giwa::device_array<T>::allocate(nullptr, s.m * s.ldc)), s});
    buffers<T>& d = data->sets.back();
    const auto seed = static_cast<giwa::uint64>(i);
    bench::require(giwa::for_all(nullptr, d.a.size(), bench::fill_normal<T>{d.a.data(), giwa::philox{seed, 0}}));
    bench::require(giwa::for_all(nullptr, d.b.size(), bench::fill_normal<T>{d.b.data(), giwa::philox{seed, 1}}));
    if (sizeof(T) == 4)
      d.workspace = bench::require(
          giwa::device_array<unsigned char>::allocate(nullptr, matmul::fp32_workspace_bytes(s.m, s.n, s.k)));
  }
  state& d = *data;
  for (bench::contest::contender& c : contenders) {
    if (c.name == "cublas") c.run = [&d](int i) { cublas_product(d.handle, d.sets[i]); };
    if (c.name == "register_tile")
      c.run = [&d](int i) {
        buffers<T>& b = d.sets[i];
        bench::require(matmul::register_tile(cudaStream_t{}, b.view_a(), b.view_b(), b.view_c()));
      };
    if constexpr (sizeof(T) == 2) {
      if (c.name == "mma")
        c.run = [&d](int i) {
          buffers<T>& b = d.sets[i];
          bench::require(matmul::mma(cudaStream_t{}, b.view_a(), b.view_b(), b.view_c()));
        };
      if (c.name == "wgmma")
        c.run = [&d](int i) {
          buffers<T>& b = d.sets[i];
          bench::require(matmul::wgmma(cudaStream_t{}, b.view_a(), b.view_b(), b.view_c()));
        };
    } else if (c.name == "fp32_by_fp16") {
      c.run = [&d](int i) {
        buffers<T>& b = d.sets[i];
        bench::require(matmul::fp32(cudaStream_t{}, b.view_a(), b.view_b(), b.view_c(), b.workspace));
      };
    }
    buffers<T>& first = d.sets[0];
    auto wrong = bench::require(giwa::device_array<int>::allocate(nullptr, 1));
    bench::require(cudaMemsetAsync(wrong.data(), 0, sizeof(int), nullptr));
    bench::require(
        cudaMemsetAsync(first.c.data(), 0xff, static_cast<std::size_t>(first.c.size()) * sizeof(T), nullptr));
    c.run(0);
    bench::require(
        giwa::for_all(nullptr, 1 << 16, verify<T>{first.view_a(), first.view_b(), first.view_c(), wrong.data()}));
    std::vector<int> count(1);
    bench::require(giwa::to_host(nullptr, wrong, count));
    if (count[0] != 0) {
      std::fprintf(stderr, "%s: %d of 65536 elements are wrong\n", c.name.c_str(), count[0]);
      std::exit(1);
    }
  }
  return data;
}

template <class T>
void add_contest(const char* type, const size& s) {
  const double flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  const std::string name =
      std::string("matmul/") + type + "/" + std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
  std::vector<bench::contest::contender> contenders{{"cublas", "cublas"}};
  if constexpr (sizeof(T) == 2) {
    contenders.push_back({"wgmma", "cublas"});
    contenders.push_back({"mma", "cublas"});
  } else {
    contenders.push_back({"fp32_by_fp16", "cublas"});
  }
  contenders.push_back({"register_tile", "cublas"});
  const int sets = flops < 1e10 ? 8 : 2, calls = flops < 1e10 ? 20 : 2;
  bench::contest::add(std::make_shared<bench::contest>(
      name, std::move(contenders), sets, calls, bench::work::of_flops(flops), bench::device_seconds,
      [s, sets](std::vector<bench::contest::contender>& c) { return prepare<T>(c, s, sets); }));
}

size square(int64 n) { return {n, n, n, n, n, n}; }

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, [] {
    for (const int64 n : {1024, 2048, 4096, 8192}) {
      add_contest<giwa::fp16>("fp16", square(n));
      add_contest<giwa::bf16>("bf16", square(n));
    }
    add_contest<giwa::fp16>("fp16", {4000, 4100, 4090, 4096, 4104, 4104});  // padded to 8 elements
    add_contest<giwa::fp16>("fp16", {1000, 1003, 997, 997, 1003, 1003});    // unaligned
    for (const int64 n : {4096, 8192}) add_contest<float>("fp32", square(n));
  });
}
