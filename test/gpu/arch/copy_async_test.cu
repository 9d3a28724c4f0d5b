// SPDX-License-Identifier: MIT
// cp.async: sizes, and groups that are waited for in order.
#include <giwa/arch/copy_async.cuh>

#include <numeric>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::uint32;
using giwa_test::gpu_array;

namespace {

constexpr int threads = 64, stages = 4;

// Each thread copies Bytes bytes to the mirrored position; then each reads the bytes of another thread.
template <int Bytes>
__global__ void __launch_bounds__(threads) copy(const unsigned char* in, unsigned char* out) {
  __shared__ __align__(16) unsigned char shared[threads * Bytes];
  const int thread = static_cast<int>(threadIdx.x), size = threads * Bytes;
  for (int i = thread; i < size; i += threads) shared[i] = 0xee;
  __syncthreads();
  giwa::arch::copy_async<Bytes>(giwa::arch::shared_address(shared + (threads - 1 - thread) * Bytes),
                                in + thread * Bytes);
  giwa::arch::copy_async_commit();
  giwa::arch::copy_async_wait<0>();
  __syncthreads();
  for (int i = thread; i < size; i += threads) out[i] = shared[i];
}

// Sums an array that is brought in piece by piece, three pieces ahead: a group each.
template <class = void>
__global__ void __launch_bounds__(threads) sum_behind(const uint32* in, uint32* out, int pieces) {
  __shared__ __align__(16) uint32 ring[stages][threads];
  const int thread = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int piece) {
    if (piece < pieces)
      giwa::arch::copy_async<4>(giwa::arch::shared_address(&ring[piece % stages][thread]),
                                in + static_cast<giwa::int64>(piece) * threads + thread);
    giwa::arch::copy_async_commit();
  };
  for (int piece = 0; piece < stages - 1; ++piece) fetch(piece);
  uint32 sum = 0;
  for (int piece = 0; piece < pieces; ++piece) {
    giwa::arch::copy_async_wait<stages - 2>();
    __syncthreads();
    sum = 3 * sum + ring[piece % stages][thread ^ 5];
    fetch(piece + stages - 1);
  }
  out[thread] = sum;
}

template <int Bytes>
void check() {
  CAPTURE(Bytes);
  std::vector<unsigned char> in(threads * Bytes), expected(in.size());
  std::iota(in.begin(), in.end(), static_cast<unsigned char>(1));
  for (int thread = 0; thread < threads; ++thread)
    for (int i = 0; i < Bytes; ++i)
      expected[static_cast<std::size_t>((threads - 1 - thread) * Bytes + i)] =
          in[static_cast<std::size_t>(thread * Bytes + i)];
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<unsigned char> in_gpu(in), out_gpu(in.size());
  copy<Bytes><<<1, threads, 0, s>>>(in_gpu.data(), out_gpu.data());
  giwa_test::check_cuda(cudaGetLastError());
  REQUIRE(giwa::synchronize(s).ok());
  REQUIRE(out_gpu.to_host() == expected);
}

bool gpu_is_too_old() {
  if (giwa_test::capability() >= 80) return false;
  WARN("skipped: the instruction needs a newer GPU");
  return true;
}

}  // namespace

TEST_CASE("4, 8 and 16 bytes") {
  if (gpu_is_too_old()) return;
  check<4>();
  check<8>();
  check<16>();
}

TEST_CASE("groups are done in order") {
  if (gpu_is_too_old()) return;
  for (const int pieces : {1, 2, 3, 4, 5, 100, 1000}) {
    CAPTURE(pieces);
    std::vector<uint32> in(static_cast<std::size_t>(pieces) * threads), expected(threads, 0);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32>(i * 2654435761u);
    for (std::size_t thread = 0; thread < threads; ++thread)
      for (std::size_t piece = 0; piece < static_cast<std::size_t>(pieces); ++piece)
        expected[thread] = 3 * expected[thread] + in[piece * threads + (thread ^ 5)];
    const giwa::stream s = giwa_test::new_stream();
    const gpu_array<uint32> in_gpu(in), out_gpu(threads);
    sum_behind<><<<1, threads, 0, s>>>(in_gpu.data(), out_gpu.data(), pieces);
    giwa_test::check_cuda(cudaGetLastError());
    REQUIRE(giwa::synchronize(s).ok());
    REQUIRE(out_gpu.to_host() == expected);
  }
}
