// SPDX-License-Identifier: MIT
// multiply with wgmma: products of tiles by a warpgroup on Hopper, with operands in shared memory or registers.
#ifndef GIWA_TILE_MMA_SM90_CUH
#define GIWA_TILE_MMA_SM90_CUH

#include <giwa/arch/matrix_descriptor.hpp>
#include <giwa/arch/wgmma.cuh>
#include <giwa/base/assert.hpp>
#include <giwa/tile/operand.hpp>
#include <giwa/tile/register_tile.hpp>

namespace giwa::inline GIWA_ABI {

/// The accumulator of a warpgroup: (64, Columns) in fp32.
template <int Columns>
using warpgroup_tile = register_tile<float, warpgroup_map<Columns>>;

/// The columns [First, First + Columns) of an accumulator, which follow each other in its registers, as an accumulator.
template <int First, int Columns, int All>
GIWA_DEVICE warpgroup_tile<Columns>& columns_of(register_tile<float, warpgroup_map<All>>& d) {
  static_assert(First % 8 == 0 && Columns % 8 == 0 && First >= 0 && First + Columns <= All,
                "giwa::columns_of: choose multiples of 8 columns of the accumulator.");
  return reinterpret_cast<warpgroup_tile<Columns>&>(d.value[First / 2]);
}

/// How multiply() makes the descriptors of its steps along k: all from the first one, or each from the one before. The latter
/// takes fewer instructions if the compiler knows that a tile's address is the same in all threads: attention_forward,
/// 128, full, 489 instead of 513 for a tile, 0.3 % faster. It takes more if not: attention_backward of 64 loses 5 to 20
/// % (H200, 2026-11-23).
///
/// of_warp: all from the first one by 64-bit additions, which a warp executes once if the compiler knows that the address is
/// the same in all threads; if not, they take more registers. attention_backward at 128 takes 20 of 555 instructions less so, while dk and dv of 64 spill half as much again.
enum class descriptors : int { from_first, in_turn, of_warp };

namespace detail {

/// The descriptor of what is `bytes` later in a tile.
template <descriptors How>
GIWA_DEVICE uint64 advance(uint64 descriptor, int bytes) {
  return How == descriptors::of_warp ? arch::advance_by_64_bits(descriptor, bytes) : arch::advance(descriptor, bytes);
}

template <class Layout>
inline constexpr swizzle swizzle_of_layout = swizzle::none;
template <swizzle Swizzle>
inline constexpr swizzle swizzle_of_layout<swizzled<Swizzle>> = Swizzle;

/// An operand of wgmma. It is contiguous along k (major::k), or along the rows (left) or columns (right) of the product
/// (major::mn).
template <class Operand, bool Left>
struct wgmma_operand : operand_traits<Operand> {
  using traits = operand_traits<Operand>;
  static constexpr swizzle pattern = swizzle_of_layout<typename traits::tile::layout>;
  static constexpr arch::major major = traits::is_transposed == Left ? arch::major::mn : arch::major::k;
  static_assert(pattern != swizzle::none,
                "giwa::multiply: wgmma reads swizzled tiles: use the layout swizzled<swizzle::bytes_128>.");
  static_assert(sizeof(typename traits::value_type) == 2 || major == arch::major::k,
                "giwa::multiply: wgmma reads 32-bit and 8-bit operands along k only: pass a as it is and b as "
                "transposed(tile).");

  static constexpr int span = span_of(pattern), size = sizeof(typename traits::value_type),
                       tile_rows = traits::tile::rows;
  static constexpr int step_bytes = 32;  // bytes of k of one instruction
  static constexpr int step =
      major == arch::major::k ? 8 : span / size;  // a descriptor begins at a multiple of this row or column

  /// Returns the descriptor from row (left) or column (right) `first` of the product on, a multiple of `step`.
  template <descriptors How>
  GIWA_DEVICE static uint64 descriptor(const Operand& o, int first) {
    constexpr bool along_k = major == arch::major::k;
    constexpr uint64 shape = arch::matrix_descriptor(pattern, along_k ? 16 : tile_rows * span, 8 * span);
    const int offset = along_k ? first * span : first * size / span * tile_rows * span;
    const uint32 address = arch::shared_address(traits::get(o).data());
    if constexpr (How != descriptors::in_turn) return advance<How>(arch::descriptor_at(shape, address), offset);
    // Both halves are added to: an instruction less each than with or. Bit 31 of an address is 0, which the compiler does not
    // know: otherwise it moves a constant upper half to its register again before each product.
    const uint32 low = static_cast<uint32>(shape) + ((address & 0x3ffff) >> 4),
                 high = static_cast<uint32>(shape >> 32) + (address >> 31);
    return advance<How>(static_cast<uint64>(high) << 32 | low, offset);
  }
  /// Returns the offset in bytes of instruction number `step` from the first one.
  GIWA_HOST_DEVICE static constexpr int offset_of(int step) {
    const int bytes = step * step_bytes;
    return major == arch::major::k ? bytes / span * tile_rows * span + bytes % span : bytes / size * span;
  }
};

/// multiply() below, to registers of any map.
template <int Depth, descriptors How, int Columns, class Left, class Right>
GIWA_DEVICE void multiply_tiles(float (&d)[Columns / 2], const Left& a, int first_row, const Right& b, bool accumulate,
                                int of_a, int of_b, int first_column) {
  require_product<Columns, Left, Right>();
  using left = wgmma_operand<Left, true>;
  using right = wgmma_operand<Right, false>;
  constexpr int bytes = (Depth == 0 ? left::columns : Depth) * left::size;
  static_assert(Depth >= 0 && Depth <= left::columns, "giwa::multiply: Depth must be at most the columns of a.");
  static_assert(left::rows % 64 == 0, "giwa::multiply: the rows of a must be a multiple of 64.");
  static_assert(bytes % left::step_bytes == 0,
                "giwa::multiply: the depth must be a multiple of 32 bytes: 16 elements of 16 bits, or 8 of 32 bits.");
  GIWA_ASSERT(0 <= first_row && first_row + 64 <= left::rows && first_row % left::step == 0,
              "a must have 64 rows from first_row on, which must be a multiple of 8, or of a slab if a is transposed");
  GIWA_ASSERT(of_a * left::size % left::step_bytes == 0 && of_b * left::size % left::step_bytes == 0 &&
                  (of_a > of_b ? of_a : of_b) * left::size + bytes <= left::columns * left::size,
              "of_a and of_b must be multiples of 32 bytes, and the operands must have Depth elements from there on");
  GIWA_ASSERT(first_column >= 0 && first_column + Columns <= right::columns &&
                  (first_column == 0 || first_column % right::step == 0),
              "b must have the columns from first_column on, which must be a multiple of its slabs");
  const int step_of_a = of_a * left::size / left::step_bytes, step_of_b = of_b * left::size / left::step_bytes;
  using instruction = arch::wgmma<Columns>;
  if constexpr (How != descriptors::in_turn) {
    const uint64 from_a = left::template descriptor<How>(a, first_row),
                 from_b = right::template descriptor<How>(b, first_column);
    GIWA_UNROLL
    for (int k = 0; k < bytes / left::step_bytes; ++k)
      instruction::template shared<typename left::value_type, left::major, right::major>(
          d, advance<How>(from_a, left::offset_of(step_of_a + k)),
          advance<How>(from_b, right::offset_of(step_of_b + k)), accumulate || k > 0);
  } else {
    uint64 from_a = advance<How>(left::template descriptor<How>(a, first_row), left::offset_of(step_of_a)),
           from_b = advance<How>(right::template descriptor<How>(b, first_column), right::offset_of(step_of_b));
    GIWA_UNROLL
    for (int k = 0; k < bytes / left::step_bytes; ++k) {
      arch::fence_descriptor(from_a);
      arch::fence_descriptor(from_b);
      instruction::template shared<typename left::value_type, left::major, right::major>(d, from_a, from_b,
                                                                                         accumulate || k > 0);
      from_a = advance<How>(from_a, left::offset_of(step_of_a + k + 1) - left::offset_of(step_of_a + k));
      from_b = advance<How>(from_b, right::offset_of(step_of_b + k + 1) - right::offset_of(step_of_b + k));
    }
  }
}

}  // namespace detail

/// Starts d = a b, or d += a b, with swizzled shared tiles or transposed() tiles, of fp16, bf16, or fp32, which wgmma truncates
/// to tf32 and which must be contiguous along k. All threads of a warpgroup call it. Asynchronous: call wgmma_fence() before the first product, wgmma_commit()
/// after the last of a group, and wgmma_wait<n>() before d is read or an operand overwritten; arch/wgmma.cuh has the rules.
///
/// `multiply<80>(...)` uses 80 of k only, because tiles consist of whole slabs whose end may be unused.
///
/// Parameters:
///   - d: (64, Columns)
///   - a: (m, k), of which rows [first_row, first_row + 64) are multiplied
///   - first_row: of a
///   - b: (k, Columns), or a tile with more columns, of which those from `first_column` on are used
///   - accumulate: whether d is added to
///   - of_a, of_b: the first of the k that are used, in the rows of a and in the columns of b
///   - first_column: a multiple of the width of b's slabs (128, 64 or 32 bytes)
template <int Depth = 0, descriptors How = descriptors::from_first, int Columns, class Left, class Right>
GIWA_DEVICE void multiply(warpgroup_tile<Columns>& d, const Left& a, int first_row, const Right& b, bool accumulate,
                          int of_a = 0, int of_b = 0, int first_column = 0) {
  detail::multiply_tiles<Depth, How, Columns>(d.value, a, first_row, b, accumulate, of_a, of_b, first_column);
}

/// Starts d = a b or d += a b as above with a in registers.
///
/// Parameters:
///   - d, b, accumulate: as above
///   - a: (64, k), as to_operand() makes it, of the 16-bit or 8-bit type of b
///   - first_column: Columns columns of b are used from here on: a multiple of the width of b's slabs (128, 64 or 32 bytes), or
///     of 8 if b is transposed
///   - of_b: k rows of b are used from here on, a multiple of 32 bytes
template <descriptors How = descriptors::from_first, int Columns, int Words, class Right>
GIWA_DEVICE void multiply(warpgroup_tile<Columns>& d, const uint32 (&a)[Words], const Right& b, bool accumulate,
                          int first_column = 0, int of_b = 0) {
  using right = detail::wgmma_operand<Right, false>;
  constexpr int depth = Words * 8 / right::size;
  static_assert(
      right::size <= 2 && Words % 4 == 0 && depth <= right::rows && right::columns >= Columns,
      "giwa::multiply: a in registers must have k / 4 words of 16-bit elements, or k / 8 of 8-bit elements, k at most "
      "the rows of b, and d at most the columns of b.");
  GIWA_ASSERT(of_b >= 0 && of_b * right::size % right::step_bytes == 0 && of_b + depth <= right::rows,
              "of_b must be a multiple of 32 bytes, and b must have the rows of k from there on");
  GIWA_ASSERT(first_column >= 0 && first_column + Columns <= right::columns && first_column % right::step == 0,
              "b must have the columns from first_column on, which must be a multiple of its slabs");
  constexpr bool in_turn = How == descriptors::in_turn;
  const int step_of_b = of_b * right::size / right::step_bytes;
  uint64 from_b = detail::advance<How>(right::template descriptor<How>(b, first_column), right::offset_of(step_of_b));
  GIWA_UNROLL
  for (int k = 0; k < Words / 4; ++k) {
    if constexpr (in_turn) arch::fence_descriptor(from_b);
    const uint32 step[4] = {a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3]};
    const int offset = right::offset_of(step_of_b + k) - right::offset_of(step_of_b);
    arch::wgmma<Columns>::template registers<typename right::value_type, right::major>(
        d.value, step, in_turn ? from_b : detail::advance<How>(from_b, offset), accumulate || k > 0);
    if constexpr (in_turn)
      from_b = detail::advance<How>(from_b, right::offset_of(step_of_b + k + 1) - right::offset_of(step_of_b + k));
  }
}

}  // namespace giwa::inline GIWA_ABI

#endif
