// SPDX-License-Identifier: MIT
// Accesses to shared tiles that must be free of bank conflicts, one kernel each, for Nsight Compute to count them; and one
// that is full of them, to show that it would. bank_conflicts.py runs this and judges.
#include <giwa/giwa.cuh>
#include <giwa/tile.cuh>
#include <giwa/tile/mma_sm80.cuh>
#include <giwa/tile/mma_sm90.cuh>
#include <giwa/tile/register_copy.cuh>

#include <cstdio>

namespace {

using giwa::swizzle, giwa::swizzled;

template <class T, int Rows, int Columns, class Layout>
using tile = giwa::shared_tile<T, giwa::tile_shape<Rows, Columns>, Layout>;

/// Fills a tile by 16-byte chunks along its rows, neighbouring lanes neighbouring chunks.
struct write_chunks {
  template <class Tile>
  GIWA_DEVICE static void run(Tile& t, int lane, float*) {
    constexpr int run = 16 / static_cast<int>(sizeof(typename Tile::value_type)), per_row = Tile::columns / run;
    for (int i = lane; i < Tile::rows * per_row; i += 32)
      *reinterpret_cast<uint4*>(t.chunk(i / per_row, i % per_row * run)) = make_uint4(1, 2, 3, 4);
  }
};

/// Reads left and right operands by ldmatrix, as they are and transposed, through a product.
struct multiply_by_warp {
  template <class Tile>
  GIWA_DEVICE static void run(Tile& t, int lane, float* out) {
    giwa::warp_tile<16, 16> sum;
    sum.fill(0);
    constexpr int side = Tile::rows < Tile::columns ? Tile::rows : Tile::columns;
    static_assert(side >= 16);
    giwa::multiply_add(lane, sum, t, 0, giwa::transposed(t), 0);  // t t^T: plain fragments
    giwa::multiply_add(lane, sum, giwa::transposed(t), 0, t, 0);  // t^T t: transposed ones
    for (int i = 0; i < sum.registers; ++i) out[i * 32 + lane] = sum.value[i];
  }
};

/// Writes accumulators by stmatrix.
struct write_accumulators {
  template <class Tile>
  GIWA_DEVICE static void run(Tile& t, int lane, float* out) {
    giwa::warp_tile<Tile::rows, Tile::columns> sum;
    for (int i = 0; i < sum.registers; ++i) sum.value[i] = out[i * 32 + lane];
    giwa::store(lane, sum, 0, t);
  }
};

/// Writes rows and reads columns, element by element: a transpose.
struct transpose_elements {
  template <class Tile>
  GIWA_DEVICE static void run(Tile& t, int lane, float* out) {
    for (int row = 0; row < Tile::rows; ++row)
      for (int column = lane; column < Tile::columns; column += 32) t(row, column) = static_cast<float>(lane);
    __syncwarp();
    float sum = 0;
    for (int column = 0; column < Tile::columns; ++column)
      for (int row = lane; row < Tile::rows; row += 32) sum += static_cast<float>(t(row, column));
    out[lane] = sum;
  }
};

template <class Tile, class Access>
__global__ void __launch_bounds__(32, 1) access(float* out) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Access::run(*reinterpret_cast<Tile*>(memory), static_cast<int>(threadIdx.x), out);
}

template <class Tile, class Access>
void run(const char* name, float* out) {
  giwa::throw_if_failed(
      giwa::launch(nullptr, {.grid = 1, .block = 32, .shared_bytes = sizeof(Tile)}, access<Tile, Access>, out));
  std::printf("%s\n", name);  // in the order of the launches
}

}  // namespace

int main() {
  auto memory = giwa::throw_if_failed(giwa::device_array<float>::allocate(nullptr, 1 << 16));
  giwa::throw_if_failed(giwa::to_status(cudaMemset(memory.data(), 0, (1 << 16) * sizeof(float))));
  float* const out = memory.data();

  using swizzled_128 = tile<giwa::fp16, 64, 64, swizzled<swizzle::bytes_128>>;
  using swizzled_64 = tile<giwa::fp16, 64, 64, swizzled<swizzle::bytes_64>>;
  using swizzled_32 = tile<giwa::fp16, 64, 64, swizzled<swizzle::bytes_32>>;
  run<swizzled_128, write_chunks>("128-byte swizzle, 16-byte stores", out);
  run<swizzled_128, multiply_by_warp>("128-byte swizzle, ldmatrix", out);
  run<swizzled_64, multiply_by_warp>("64-byte swizzle, ldmatrix", out);
  run<swizzled_32, multiply_by_warp>("32-byte swizzle, ldmatrix", out);
  run<swizzled_128, write_accumulators>("128-byte swizzle, stmatrix", out);
  run<swizzled_64, write_accumulators>("64-byte swizzle, stmatrix", out);
  run<swizzled_32, write_accumulators>("32-byte swizzle, stmatrix", out);
  run<tile<float, 32, 32, giwa::transposable>, transpose_elements>("fp32 XOR, transposed read", out);
  run<tile<float, 32, 32, giwa::padded<1>>, transpose_elements>("fp32 padded, transposed read", out);
  run<tile<giwa::fp16, 64, 64, giwa::padded<8>>, multiply_by_warp>("fp16 padded, ldmatrix", out);
  run<tile<giwa::fp16, 64, 64, giwa::paired>, multiply_by_warp>("fp16 in pairs of rows, ldmatrix", out);
  run<tile<float, 32, 32, giwa::row_major>, transpose_elements>("CONFLICTS: fp32 row-major, transposed read", out);
  run<tile<giwa::fp16, 64, 64, giwa::row_major>, multiply_by_warp>("CONFLICTS: fp16 row-major, ldmatrix", out);
  giwa::throw_if_failed(giwa::to_status(cudaDeviceSynchronize()));
  return 0;
}
