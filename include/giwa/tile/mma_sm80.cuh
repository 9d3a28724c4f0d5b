// SPDX-License-Identifier: MIT
// multiply_add with mma.sync: products of tiles by a warp on the tensor cores of every GPU, with operands in shared memory.
#ifndef GIWA_TILE_MMA_SM80_CUH
#define GIWA_TILE_MMA_SM80_CUH

#include <giwa/arch/matrix_load.cuh>
#include <giwa/arch/mma.cuh>
#include <giwa/arch/shared_address.cuh>
#include <giwa/base/assert.hpp>
#include <giwa/tile/operand.hpp>
#include <giwa/tile/register_tile.hpp>

namespace giwa::inline GIWA_ABI {

/// The accumulator of a warp: (Rows, Columns) in fp32.
template <int Rows, int Columns>
using warp_tile = register_tile<float, warp_map<Rows, Columns>>;

namespace detail {

/// Loads fragments of 16-bit operands by ldmatrix, free of bank conflicts in tiles with a 128-byte swizzle.
template <class T>
struct fragment_loader {
  static constexpr int depth = 16;

  /// Loads (16, 16) of a left operand from (row, k) on.
  template <class Left>
  GIWA_DEVICE static void left(uint32 (&to)[4], const Left& a, int row, int k, int lane) {
    if constexpr (operand_traits<Left>::is_transposed)
      arch::load_matrices<true>(to, address(a, k, row, lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
    else
      arch::load_matrices(to, address(a, row, k, lane % 16, lane / 16 * 8));
  }

  /// Loads (16, 16) of a right operand from (k, column) on: the fragments of two neighbouring products.
  template <class Right>
  GIWA_DEVICE static void right(uint32 (&to)[4], const Right& b, int k, int column, int lane) {
    if constexpr (operand_traits<Right>::is_transposed)
      arch::load_matrices(to, address(b, column, k, lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
    else
      arch::load_matrices<true>(to, address(b, k, column, lane % 16, lane / 16 * 8));
  }

  // The address of the row that a lane passes, (own_row, own_column) of the (16, 16) from (row, column) on. It is the address of
  // the tile plus an offset, not that of an element, and in layouts that repeat the lane's part is added to it. So the
  // compiler makes the rest constants in the instructions; it would keep the address of each fragment in a register.
  template <class Operand>
  GIWA_DEVICE static uint32 address(const Operand& o, int row, int column, int own_row, int own_column) {
    using tile = typename operand_traits<Operand>::tile;
    using placement = typename tile::placement;
    static_assert(
        tile::has_chunks,
        "giwa::multiply_add: ldmatrix reads 16 contiguous bytes: use the layout row_major, swizzled, paired or "
        "padded<16 / sizeof(T)>, with rows of a multiple of 16 bytes.");
    const uint32 begin = arch::shared_address(operand_traits<Operand>::get(o).data());
    if constexpr (requires { placement::pitch; }) {
      static_assert(8 % placement::period_rows == 0);  // and row is a multiple of 8
      const int rest = column & (placement::period_columns - 1);
      return begin + static_cast<uint32>(placement::offset(own_row, own_column + rest)) * uint32{sizeof(T)} +
             static_cast<uint32>(row * placement::pitch + column - rest) * uint32{sizeof(T)};
    } else {
      return begin + static_cast<uint32>(placement::offset(row + own_row, column + own_column)) * uint32{sizeof(T)};
    }
  }

  GIWA_DEVICE static void multiply(float (&d)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
    arch::mma_16x8x16<T>(d, a, b);
  }
};

/// Loads fragments of fp32 operands element by element and rounds them to tf32.
template <>
struct fragment_loader<float> {
  static constexpr int depth = 8;

  template <class Operand>
  GIWA_DEVICE static uint32 at(const Operand& o, int row, int column) {
    using traits = operand_traits<Operand>;
    const auto& tile = traits::get(o);
    return arch::to_tf32(traits::is_transposed ? tile(column, row) : tile(row, column));
  }
  template <class Left>
  GIWA_DEVICE static void left(uint32 (&to)[4], const Left& a, int row, int k, int lane) {
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = at(a, row + lane / 4 + i % 2 * 8, k + lane % 4 + i / 2 * 4);
  }
  template <class Right>
  GIWA_DEVICE static void right(uint32 (&to)[4], const Right& b, int k, int column, int lane) {
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = at(b, k + lane % 4 + i % 2 * 4, column + lane / 4 + i / 2 * 8);
  }
  GIWA_DEVICE static void multiply(float (&d)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
    arch::mma_16x8x8_tf32(d, a, b);
  }
};

/// Returns whether an operand of `all` rows or columns has `count` of them from `first` on; `first` is a multiple of 8,
/// because ldmatrix reads 8 at once.
GIWA_HOST_DEVICE constexpr bool has_part(int first, int count, int all) {
  return first >= 0 && first % 8 == 0 && first + count <= all;
}

/// The loop of a warp's product: `Steps` steps of k, each with the fragments of b for 16 columns at a time. Fragments of b are
/// read `ahead` products before their use, which hides the latency of shared memory; left(to, k) reads those of a one step
/// ahead.
template <int Steps, int Rows, int Columns, class Loader, class Left, class Right>
GIWA_DEVICE void multiply_by_steps(int lane, warp_tile<Rows, Columns>& d, const Left& left, const Right& b,
                                   int first_column) {
  static_assert(Columns % 16 == 0, "giwa::multiply_add: the columns of a warp_tile must be a multiple of 16.");
  constexpr int blocks = Columns / 16, total = Steps * blocks, row_registers = warp_map<Rows, Columns>::fragment_row;
  constexpr int wanted = Rows == 16 ? 4 : 2, ahead = wanted < total ? wanted : total;
  uint32 of_a[2][Rows / 16][4], of_b[ahead][4];
  const auto read_b = [&](int t) {
    Loader::right(of_b[t % ahead], b, t / blocks * Loader::depth, first_column + t % blocks * 16, lane);
  };
  left(of_a[0], 0);
  GIWA_UNROLL
  for (int t = 0; t < ahead; ++t) read_b(t);
  GIWA_UNROLL
  for (int t = 0; t < total; ++t) {
    const int k = t / blocks, j = t % blocks;
    if (j == 0 && k + 1 < Steps) left(of_a[(k + 1) % 2], k + 1);
    GIWA_UNROLL
    for (int i = 0; i < Rows / 16; ++i) {
      GIWA_UNROLL
      for (int half = 0; half < 2; ++half) {
        auto& block = reinterpret_cast<float(&)[4]>(d.value[i * row_registers + (2 * j + half) * 4]);
        const uint32 b_half[2] = {of_b[t % ahead][2 * half], of_b[t % ahead][2 * half + 1]};
        Loader::multiply(block, of_a[k % 2][i], b_half);
      }
    }
    if (t + ahead < total) read_b(t + ahead);
  }
}

}  // namespace detail

/// Computes d += rows of a times columns of b. All lanes of a warp call it. a and b are shared tiles or transposed() tiles of
/// fp16 (sm_75 and later), bf16 (sm_80), or fp32 (sm_80), which is rounded to tf32 with 10 bits of fraction; sums are fp32.
/// Both operands are complete: a barrier lies before the call. Swizzled tiles are fastest.
///
/// Parameters:
///   - lane: the rank in the warp
///   - d: (Rows, Columns)
///   - a: (m, k), of which rows [first_row, first_row + Rows) are multiplied
///   - b: (k, n), of which columns [first_column, first_column + Columns) are multiplied
///   - first_row, first_column: multiples of 8
template <int Rows, int Columns, class Left, class Right>
GIWA_DEVICE void multiply_add(int lane, warp_tile<Rows, Columns>& d, const Left& a, int first_row, const Right& b,
                              int first_column) {
  detail::require_product<Columns, Left, Right>();
  using loader = detail::fragment_loader<typename operand_traits<Left>::value_type>;
  static_assert(operand_traits<Left>::rows % Rows == 0,
                "giwa::multiply_add: the rows of a must be a multiple of the rows of d.");
  static_assert(operand_traits<Left>::columns % loader::depth == 0,
                "giwa::multiply_add: the columns of a must be a multiple of 16, or of 8 in fp32.");
  GIWA_ASSERT(detail::has_part(first_row, Rows, operand_traits<Left>::rows), "a must have the rows from first_row on");
  GIWA_ASSERT(detail::has_part(first_column, Columns, operand_traits<Right>::columns),
              "b must have the columns from first_column on");
  const auto left = [&](uint32(&to)[Rows / 16][4], int k) {
    GIWA_UNROLL
    for (int i = 0; i < Rows / 16; ++i) loader::left(to[i], a, first_row + 16 * i, k * loader::depth, lane);
  };
  detail::multiply_by_steps<operand_traits<Left>::columns / loader::depth, Rows, Columns, loader>(lane, d, left, b,
                                                                                                  first_column);
}

/// Computes d += a b as above with a in registers.
///
/// Parameters:
///   - lane, d, b, first_column: as above
///   - a: (Rows, k), as to_operand() makes it, of the 16-bit type of b
template <int Rows, int Columns, int Words, class Right>
GIWA_DEVICE void multiply_add(int lane, warp_tile<Rows, Columns>& d, const uint32 (&a)[Words], const Right& b,
                              int first_column) {
  using loader = detail::fragment_loader<typename operand_traits<Right>::value_type>;
  constexpr int steps = operand_traits<Right>::rows / 16;
  static_assert(
      loader::depth == 16 && Words == Rows / 16 * steps * 4 && operand_traits<Right>::rows % 16 == 0,
      "giwa::multiply_add: a in registers must have Rows * k / 64 words of 16-bit elements, k the rows of b.");
  GIWA_ASSERT(detail::has_part(first_column, Columns, operand_traits<Right>::columns),
              "b must have the columns from first_column on");
  const auto left = [&](uint32(&to)[Rows / 16][4], int k) {
    GIWA_UNROLL
    for (int i = 0; i < 4 * (Rows / 16); ++i) to[i / 4][i % 4] = a[(i / 4 * steps + k) * 4 + i % 4];
  };
  detail::multiply_by_steps<steps, Rows, Columns, loader>(lane, d, left, b, first_column);
}

}  // namespace giwa::inline GIWA_ABI

#endif
