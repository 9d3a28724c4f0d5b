// SPDX-License-Identifier: MIT
// The matrix products by wgmma, on ragged sizes: exact on integers, and the same bits thousands of times over.
#include "../examples/matmul/fp32.cuh"
#include "../examples/matmul/wgmma.cuh"

#include "support/hopper.cuh"
#include "support/random.hpp"

using giwa::bf16, giwa::fp16, giwa::int64;
using giwa_test::gpu_array;

namespace {

/// An epilogue that holds threads up, so that the roles meet in another order each time.
struct sleepy {
  unsigned most;  // ns
  GIWA_HOST_DEVICE float operator()(float sum, int64 row, int64 column) const {
#if defined(__CUDA_ARCH__)
    if ((row + column) % 16 == 0) giwa_test::sleep_at_random(most);
#else
    static_cast<void>(row), static_cast<void>(column);
#endif
    return sum;
  }
};

template <class T>
__global__ void __launch_bounds__(256) count_differences(const T* a, const T* b, int count, unsigned* different) {
  const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  if (i < count && a[i] != b[i]) atomicAdd(different, 1u);
}

/// Step 5 for 16-bit elements, step 6 for fp32.
template <class T, class Epilogue>
giwa::status multiply(cudaStream_t s, const giwa::tensor_view<const T, 2>& a, const giwa::tensor_view<const T, 2>& b,
                      const giwa::tensor_view<T, 2>& c, [[maybe_unused]] const gpu_array<unsigned char>& workspace,
                      const Epilogue& epilogue) {
  if constexpr (sizeof(T) == 2)
    return matmul::wgmma(s, a, b, c, epilogue);
  else
    return matmul::fp32(s, a, b, c, {workspace.data(), {static_cast<int64>(workspace.size())}}, epilogue);
}

template <class T, class Epilogue>
void check_repeats(int64 m, int64 n, int64 k, int repeats, const Epilogue& epilogue) {
  giwa_test::random_sequence random(static_cast<giwa::uint64>(m + n + k));
  const auto integers = [&](int64 count) {
    std::vector<float> v(static_cast<std::size_t>(count));
    for (float& x : v) x = static_cast<float>(random.below(3) - 1);
    return v;
  };
  const auto rounded = [](const std::vector<float>& from) {
    std::vector<T> v;
    for (const float x : from) v.push_back(giwa::convert<T>{}(x));
    return v;
  };
  const std::vector<float> a = integers(m * k), b = integers(k * n);
  std::vector<float> expected(static_cast<std::size_t>(m * n), 0.0f);
  for (int64 row = 0; row < m; ++row)
    for (int64 i = 0; i < k; ++i)
      for (int64 column = 0; column < n; ++column)
        expected[static_cast<std::size_t>(row * n + column)] +=
            a[static_cast<std::size_t>(row * k + i)] * b[static_cast<std::size_t>(i * n + column)];
  const gpu_array<T> a_gpu(rounded(a)), b_gpu(rounded(b)), expected_gpu(rounded(expected)), c_gpu(expected.size());
  const gpu_array<unsigned> different(1, 0);
  const gpu_array<unsigned char> workspace(static_cast<std::size_t>(matmul::fp32_workspace_bytes(m, n, k)));
  const giwa::stream s = giwa_test::new_stream();
  const giwa::tensor_view<const T, 2> view_a{a_gpu.data(), {m, k}}, view_b{b_gpu.data(), {k, n}};
  const giwa::tensor_view<T, 2> view_c{c_gpu.data(), {m, n}};
  const int count = static_cast<int>(m * n);
  for (int i = 0; i < repeats; ++i) {
    giwa_test::check_cuda(cudaMemsetAsync(c_gpu.data(), 0xff, c_gpu.bytes(), s));  // NaN, which equals nothing
    giwa::throw_if_failed(multiply(s, view_a, view_b, view_c, workspace, epilogue));
    count_differences<<<static_cast<unsigned>((count + 255) / 256), 256, 0, s>>>(c_gpu.data(), expected_gpu.data(),
                                                                                 count, different.data());
  }
  giwa::throw_if_failed(giwa::synchronize(s));
  CAPTURE(m, n, k);
  CHECK(different.to_host()[0] == 0);
}

}  // namespace

TEST_CASE("a ragged product is exact ten thousand times") {
  if (!giwa_test::has_wgmma()) return;
  const bool small = giwa_test::small_mode();
  check_repeats<fp16>(200, 328, 520, small ? 2 : 10000,
                      matmul::identity{});  // 2 clusters; the ring is used twice and more
  check_repeats<bf16>(130, 264, 72, small ? 1 : 2000, matmul::identity{});
  check_repeats<float>(200, 328, 520, small ? 1 : 2000, matmul::identity{});
  if (!small) check_repeats<fp16>(1032, 1096, 264, 500, matmul::identity{});
  if (!small) check_repeats<float>(1031, 1097, 203, 500, matmul::identity{});
}

TEST_CASE("a ragged product is exact however long its epilogue takes") {
  if (!giwa_test::has_wgmma()) return;
  check_repeats<fp16>(300, 520, 392, giwa_test::small_mode() ? 1 : 1000, sleepy{500});
  check_repeats<float>(300, 520, 392, giwa_test::small_mode() ? 1 : 1000, sleepy{500});
}
