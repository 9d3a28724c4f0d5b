// SPDX-License-Identifier: MIT
// Products of tiles by a warp on the tensor cores of every GPU (mma.sync), with operands in shared memory.
#ifndef GIWA_TILE_MMA_SM80_CUH
#define GIWA_TILE_MMA_SM80_CUH

#include <giwa/arch/matrix_load.cuh>
#include <giwa/arch/mma.cuh>
#include <giwa/arch/shared_address.cuh>
#include <giwa/tile/operand.hpp>
#include <giwa/tile/register_tile.hpp>

namespace giwa::inline GIWA_ABI {

/// What a warp accumulates in: (Rows, Columns) in fp32.
template <int Rows, int Columns>
using warp_tile = register_tile<float, warp_map<Rows, Columns>>;

namespace detail {

/// Fragments of 16-bit operands, by ldmatrix: free of bank conflicts in tiles swizzled over 128 bytes.
template <class T>
struct fragment_loader {
  static constexpr int depth = 16;

  /// (16, 16) of a left operand from (row, k) on.
  template <class Left>
  GIWA_DEVICE static void left(uint32 (&to)[4], const Left& a, int row, int k, int lane) {
    using traits = operand_traits<Left>;
    const auto& tile = traits::get(a);
    if constexpr (traits::is_transposed)
      arch::load_matrices<true>(to,
                                arch::shared_address(tile.chunk(k + lane % 8 + lane / 16 * 8, row + lane / 8 % 2 * 8)));
    else
      arch::load_matrices(to, arch::shared_address(tile.chunk(row + lane % 16, k + lane / 16 * 8)));
  }

  /// (16, 16) of a right operand from (k, column) on: the fragments of two products side by side.
  template <class Right>
  GIWA_DEVICE static void right(uint32 (&to)[4], const Right& b, int k, int column, int lane) {
    using traits = operand_traits<Right>;
    const auto& tile = traits::get(b);
    if constexpr (traits::is_transposed)
      arch::load_matrices(to,
                          arch::shared_address(tile.chunk(column + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8)));
    else
      arch::load_matrices<true>(to, arch::shared_address(tile.chunk(k + lane % 16, column + lane / 16 * 8)));
  }

  GIWA_DEVICE static void multiply(float (&d)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
    arch::mma_16x8x16<T>(d, a, b);
  }
};

/// Fragments of fp32 operands, rounded to tf32, element by element.
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

}  // namespace detail

/// d (Rows, Columns) += rows [first_row, first_row + Rows) of a (m, k) times columns [first_column, first_column + Columns)
/// of b (k, n), by the 32 lanes of a warp. a and b are shared tiles, swizzled best, or transposed() ones, of fp16 or bf16
/// (fp16 from sm_75 on), or of fp32, which is rounded to tf32: 10 bits of fraction.
template <int Rows, int Columns, class Left, class Right>
GIWA_DEVICE void multiply_add(int lane, warp_tile<Rows, Columns>& d, const Left& a, int first_row, const Right& b,
                              int first_column) {
  detail::require_product<Columns, Left, Right>();
  using loader = detail::fragment_loader<typename operand_traits<Left>::value_type>;
  static_assert(operand_traits<Left>::rows % Rows == 0, "giwa::multiply_add: a has a multiple of d's rows.");
  static_assert(Columns % 16 == 0, "giwa::multiply_add: a warp's columns come by 16.");
  static_assert(operand_traits<Left>::columns % loader::depth == 0,
                "giwa::multiply_add: the depth of a tile is a multiple of 16 elements, or of 8 fp32.");
  constexpr int row_registers = warp_map<Rows, Columns>::fragment_row;
  GIWA_UNROLL
  for (int k = 0; k < operand_traits<Left>::columns; k += loader::depth) {
    uint32 left[Rows / 16][4];
    GIWA_UNROLL
    for (int i = 0; i < Rows / 16; ++i) loader::left(left[i], a, first_row + 16 * i, k, lane);
    GIWA_UNROLL
    for (int j = 0; j < Columns / 16; ++j) {
      uint32 right[4];
      loader::right(right, b, k, first_column + 16 * j, lane);
      GIWA_UNROLL
      for (int i = 0; i < Rows / 16; ++i) {
        GIWA_UNROLL
        for (int half = 0; half < 2; ++half) {
          auto& block = reinterpret_cast<float(&)[4]>(d.value[i * row_registers + (2 * j + half) * 4]);
          const uint32 b_half[2] = {right[2 * half], right[2 * half + 1]};
          loader::multiply(block, left[i], b_half);
        }
      }
    }
  }
}

}  // namespace giwa::inline GIWA_ABI

#endif
