// SPDX-License-Identifier: MIT
// ldmatrix and stmatrix: numbered elements, rows in any order in shared memory, one to four matrices, plain and transposed.
#include <giwa/arch/matrix_load.cuh>
#include <giwa/tile/fragment.hpp>

#include <numeric>

#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/random.hpp"

using giwa::uint32;
using giwa_test::gpu_array;

namespace {

using words = unsigned short;
constexpr int slots = 64;  // of 16 bytes: the rows of the matrices, each in one, and others that nobody may touch

// Row 8 m + r of matrix m lies in slot[8 m + r].
template <int Count, bool Transposed>
__global__ void __launch_bounds__(32) load(const words* memory, const int* slot, uint32* registers) {
  __shared__ __align__(16) words shared[slots * 8];
  for (int i = static_cast<int>(threadIdx.x); i < slots * 8; i += 32) shared[i] = memory[i];
  __syncthreads();
  uint32 to[Count];
  giwa::arch::load_matrices<Transposed>(to, giwa::arch::shared_address(shared + 8 * slot[threadIdx.x]));
#pragma unroll
  for (int m = 0; m < Count; ++m) registers[32 * m + static_cast<int>(threadIdx.x)] = to[m];
}

template <int Count, bool Transposed>
__global__ void __launch_bounds__(32) store(const uint32* registers, const int* slot, words* memory) {
  __shared__ __align__(16) words shared[slots * 8];
  for (int i = static_cast<int>(threadIdx.x); i < slots * 8; i += 32) shared[i] = 0xffff;
  __syncthreads();
  uint32 from[Count];
#pragma unroll
  for (int m = 0; m < Count; ++m) from[m] = registers[32 * m + static_cast<int>(threadIdx.x)];
  giwa::arch::store_matrices<Transposed>(giwa::arch::shared_address(shared + 8 * slot[threadIdx.x]), from);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < slots * 8; i += 32) memory[i] = shared[i];
}

template <int Count, bool Transposed>
struct variant {
  static constexpr int count = Count;
  static constexpr bool transposed = Transposed;
};

// The register of a lane for a matrix whose element (r, c) is numbered 64 m + 8 r + c.
template <bool Transposed>
uint32 expected_register(int matrix, int lane) {
  uint32 bits = 0;
  for (int element = 0; element < 2; ++element) {
    giwa::tile_position at = giwa::matrix_8x8_fragment::position(lane, element);
    if (Transposed) at = {at.column, at.row};
    bits |= static_cast<uint32>(64 * matrix + 8 * at.row + at.column) << (16 * element);
  }
  return bits;
}

// An offset for the row of each lane: all different, in random order.
std::vector<int> shuffled_slots(giwa_test::random_sequence& random) {
  std::vector<int> all(slots);
  std::iota(all.begin(), all.end(), 0);
  for (int i = slots - 1; i > 0; --i)
    std::swap(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(random.below(i + 1))]);
  all.resize(32);
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("matrices are loaded and stored", "", (variant<1, false>), (variant<2, false>), (variant<4, false>),
                   (variant<1, true>), (variant<2, true>), (variant<4, true>)) {
  constexpr int count = TestType::count;
  constexpr bool transposed = TestType::transposed;
  giwa_test::random_sequence random(3);
  const giwa::stream s = giwa_test::new_stream();
  for (int round = 0; round < 10; ++round) {
    const std::vector<int> slot = shuffled_slots(random);
    std::vector<words> memory(slots * 8, 0xffff);
    for (int row = 0; row < 8 * count; ++row)
      for (int column = 0; column < 8; ++column)
        memory[static_cast<std::size_t>(8 * slot[static_cast<std::size_t>(row)] + column)] =
            static_cast<words>(8 * row + column);
    std::vector<uint32> registers;
    for (int matrix = 0; matrix < count; ++matrix)
      for (int lane = 0; lane < 32; ++lane) registers.push_back(expected_register<transposed>(matrix, lane));

    const gpu_array<int> slot_gpu(slot);
    const gpu_array<words> memory_gpu(memory), stored_gpu(memory.size());
    const gpu_array<uint32> loaded_gpu(registers.size()), registers_gpu(registers);
    load<count, transposed><<<1, 32, 0, s>>>(memory_gpu.data(), slot_gpu.data(), loaded_gpu.data());
    giwa_test::check_cuda(cudaGetLastError());
    REQUIRE(giwa::synchronize(s).ok());
    REQUIRE(loaded_gpu.to_host() == registers);

    if (giwa_test::capability() < 90) continue;
    store<count, transposed><<<1, 32, 0, s>>>(registers_gpu.data(), slot_gpu.data(), stored_gpu.data());
    giwa_test::check_cuda(cudaGetLastError());
    REQUIRE(giwa::synchronize(s).ok());
    REQUIRE(stored_gpu.to_host() == memory);
  }
}
