// SPDX-License-Identifier: MIT
// Products of tiles by a warpgroup on Hopper's tensor cores, with operands in shared memory or registers.
#ifndef GIWA_TILE_MMA_SM90_CUH
#define GIWA_TILE_MMA_SM90_CUH

#include <giwa/arch/matrix_descriptor.hpp>
#include <giwa/arch/wgmma.cuh>
#include <giwa/base/assert.hpp>
#include <giwa/tile/operand.hpp>
#include <giwa/tile/register_tile.hpp>

namespace giwa::inline GIWA_ABI {

/// What a warpgroup accumulates in: (64, Columns) in fp32.
template <int Columns>
using warpgroup_tile = register_tile<float, warpgroup_map<Columns>>;

namespace detail {

template <class Layout>
inline constexpr swizzle swizzle_of_layout = swizzle::none;
template <swizzle Swizzle>
inline constexpr swizzle swizzle_of_layout<swizzled<Swizzle>> = Swizzle;

/// The operand of a product: its matrix runs along k, or along the product's rows (left) or columns (right).
template <class Operand, bool Left>
struct wgmma_operand : operand_traits<Operand> {
  using traits = operand_traits<Operand>;
  static constexpr swizzle pattern = swizzle_of_layout<typename traits::tile::layout>;
  static constexpr arch::major major = traits::is_transposed == Left ? arch::major::mn : arch::major::k;
  static_assert(pattern != swizzle::none, "giwa::multiply: wgmma reads tiles whose layout is swizzled<…>.");
  static_assert(sizeof(typename traits::value_type) == 2 || major == arch::major::k,
                "giwa::multiply: wgmma reads 32-bit operands along k only: a as it is, b as transposed(tile).");

  static constexpr int span = span_of(pattern), size = sizeof(typename traits::value_type),
                       tile_rows = traits::tile::rows;
  static constexpr int step_bytes = 32;  // of k that one instruction takes
  static constexpr int step =
      major == arch::major::k ? 8 : span / size;  // rows or columns from which a descriptor can begin

  /// The descriptor from row (left) or column (right) `first` of the product on: a multiple of 8 along k, else of a slab.
  GIWA_DEVICE static uint64 descriptor(const Operand& o, int first) {
    constexpr bool along_k = major == arch::major::k;
    constexpr uint64 shape = arch::matrix_descriptor(pattern, along_k ? 16 : tile_rows * span, 8 * span);
    const int offset = along_k ? first * span : first * size / span * tile_rows * span;
    return arch::advance(arch::placed_at(shape, arch::shared_address(traits::get(o).data())), offset);
  }
  /// How far instruction number `step` reads behind the first.
  GIWA_HOST_DEVICE static constexpr int offset_of(int step) {
    const int bytes = step * step_bytes;
    return major == arch::major::k ? bytes / span * tile_rows * span + bytes % span : bytes / size * span;
  }
};

}  // namespace detail

// The products below are asynchronous: wgmma_fence() before the first, wgmma_commit() after the last of a group, and
// wgmma_wait<n>() before d is read or an operand is overwritten. arch/wgmma.cuh has the rules.

/// d = a b, or d += a b if `accumulate`, with rows [first_row, first_row + 64) of a (m, k) and b (k, Columns) in shared
/// memory: swizzled tiles, or transposed() ones. fp32 tiles are multiplied in tf32, and must run along k.
/// `multiply<80>(…)` takes 80 of k alone, from number `of_a` of a's and `of_b` of b's on: tiles come in whole slabs, of which the
/// end may be empty, or hold something else.
template <int Depth = 0, int Columns, class Left, class Right>
GIWA_DEVICE void multiply(warpgroup_tile<Columns>& d, const Left& a, int first_row, const Right& b, bool accumulate,
                          int of_a = 0, int of_b = 0) {
  detail::require_product<Columns, Left, Right>();
  using left = detail::wgmma_operand<Left, true>;
  using right = detail::wgmma_operand<Right, false>;
  constexpr int bytes = (Depth == 0 ? left::columns : Depth) * left::size;
  static_assert(Depth >= 0 && Depth <= left::columns, "giwa::multiply: the depth is at most that of the tiles.");
  static_assert(left::rows % 64 == 0, "giwa::multiply: wgmma reads 64 rows of a: a has a multiple of them.");
  static_assert(right::columns == Columns, "giwa::multiply: d has the columns of b.");
  static_assert(bytes % left::step_bytes == 0,
                "giwa::multiply: a step of wgmma takes 32 bytes of k: 16 elements of 16 bits, or 8 of 32.");
  GIWA_ASSERT(0 <= first_row && first_row + 64 <= left::rows && first_row % left::step == 0,
              "a has no such 64 rows, or they do not begin where a descriptor can");
  GIWA_ASSERT(of_a * left::size % left::step_bytes == 0 && of_b * left::size % left::step_bytes == 0 &&
                  (of_a > of_b ? of_a : of_b) * left::size + bytes <= left::columns * left::size,
              "the operands do not have so much depth from there on, or a step of wgmma does not begin there");
  const int step_of_a = of_a * left::size / left::step_bytes, step_of_b = of_b * left::size / left::step_bytes;
  const uint64 from_a = left::descriptor(a, first_row), from_b = right::descriptor(b, 0);
  GIWA_UNROLL
  for (int k = 0; k < bytes / left::step_bytes; ++k)
    arch::wgmma<Columns>::template shared<typename left::value_type, left::major, right::major>(
        d.value, arch::advance(from_a, left::offset_of(step_of_a + k)),
        arch::advance(from_b, right::offset_of(step_of_b + k)), accumulate || k > 0);
}

/// The same with a (64, k) in registers, as to_operand() makes it, of the 16-bit type of b (k, Columns or more), whose columns
/// are taken from first_column on: a multiple of its slabs' 128, 64 or 32 bytes.
template <int Columns, int Words, class Right>
GIWA_DEVICE void multiply(warpgroup_tile<Columns>& d, const uint32 (&a)[Words], const Right& b, bool accumulate,
                          int first_column = 0) {
  using right = detail::wgmma_operand<Right, false>;
  static_assert(right::size == 2 && Words % 4 == 0 && Words * 4 == right::rows && right::columns >= Columns,
                "giwa::multiply: a in registers has k / 4 words of 16-bit elements, and d columns that b has.");
  GIWA_ASSERT(first_column >= 0 && first_column + Columns <= right::columns && first_column % right::step == 0,
              "b has no such columns, or they do not begin where a descriptor can");
  const uint64 from_b = right::descriptor(b, first_column);
  GIWA_UNROLL
  for (int k = 0; k < Words / 4; ++k) {
    const uint32 step[4] = {a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3]};
    arch::wgmma<Columns>::template registers<typename right::value_type, right::major>(
        d.value, step, arch::advance(from_b, right::offset_of(k)), accumulate || k > 0);
  }
}

}  // namespace giwa::inline GIWA_ABI

#endif
