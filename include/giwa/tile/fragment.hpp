// SPDX-License-Identifier: MIT
// Fragments of the tensor cores: which element of a small matrix each lane holds in which of its registers.
#ifndef GIWA_TILE_FRAGMENT_HPP
#define GIWA_TILE_FRAGMENT_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// A position in a tile or in the matrix of a fragment.
struct tile_position {
  int row;     ///< From 0.
  int column;  ///< From 0.
  /// Returns whether the positions are equal.
  GIWA_HOST_DEVICE friend constexpr bool operator==(const tile_position& a, const tile_position& b) {
    return a.row == b.row && a.column == b.column;
  }
};

// A fragment is a type with
//   rows, columns            the sizes of the matrix
//   lanes                    the number of lanes that hold it: 32 of a warp, or the 128 threads of a warpgroup
//   elements                 the number of elements that each lane holds
//   position(lane, element)  the position of an element of a lane in the matrix
// Elements of 16 bits are packed in pairs: element 2 r in the lower half of register r, 2 r + 1 in the upper half. PTX ISA,
// "Matrix Fragments for mma.m16n8k16" and the neighbouring sections, and "Register Fragments" of wgmma.

/// A matrix of ldmatrix and stmatrix: 8 rows of 16 bytes, of 16-bit elements.
struct matrix_8x8_fragment {
  /// (rows, columns), held by `lanes` threads, `elements` each; position(lane, element) is where one belongs.
  ///@{
  static constexpr int rows = 8, columns = 8, lanes = 32, elements = 2;
  GIWA_HOST_DEVICE static constexpr tile_position position(int lane, int element) {
    return {lane / 4, lane % 4 * 2 + element};
  }
  ///@}
};

/// A of mma.m16n8k16, 16-bit elements: ldmatrix x4 of the matrices (rows 0, columns 0), (8, 0), (0, 8), (8, 8).
struct mma_a_fragment {
  /// (rows, columns), held by `lanes` threads, `elements` each; position(lane, element) is where one belongs.
  ///@{
  static constexpr int rows = 16, columns = 16, lanes = 32, elements = 8;
  GIWA_HOST_DEVICE static constexpr tile_position position(int lane, int element) {
    return {lane / 4 + element / 2 % 2 * 8, lane % 4 * 2 + element % 2 + element / 4 * 8};
  }
  ///@}
};

/// B of mma.m16n8k16, 16-bit elements; rows are k. ldmatrix x2 of its columns, or of its rows with .trans.
struct mma_b_fragment {
  /// (rows, columns), held by `lanes` threads, `elements` each; position(lane, element) is where one belongs.
  ///@{
  static constexpr int rows = 16, columns = 8, lanes = 32, elements = 4;
  GIWA_HOST_DEVICE static constexpr tile_position position(int lane, int element) {
    return {lane % 4 * 2 + element % 2 + element / 2 * 8, lane / 4};
  }
  ///@}
};

/// C and D of mma.m16n8k16 and m16n8k8, fp32.
struct mma_accumulator_fragment {
  /// (rows, columns), held by `lanes` threads, `elements` each; position(lane, element) is where one belongs.
  ///@{
  static constexpr int rows = 16, columns = 8, lanes = 32, elements = 4;
  GIWA_HOST_DEVICE static constexpr tile_position position(int lane, int element) {
    return {lane / 4 + element / 2 * 8, lane % 4 * 2 + element % 2};
  }
  ///@}
};

/// A of mma.m16n8k8, tf32.
struct mma_a_tf32_fragment {
  /// (rows, columns), held by `lanes` threads, `elements` each; position(lane, element) is where one belongs.
  ///@{
  static constexpr int rows = 16, columns = 8, lanes = 32, elements = 4;
  GIWA_HOST_DEVICE static constexpr tile_position position(int lane, int element) {
    return {lane / 4 + element % 2 * 8, lane % 4 + element / 2 * 4};
  }
  ///@}
};

/// B of mma.m16n8k8, tf32; rows are k.
struct mma_b_tf32_fragment {
  /// (rows, columns), held by `lanes` threads, `elements` each; position(lane, element) is where one belongs.
  ///@{
  static constexpr int rows = 8, columns = 8, lanes = 32, elements = 2;
  GIWA_HOST_DEVICE static constexpr tile_position position(int lane, int element) {
    return {lane % 4 + element * 4, lane / 4};
  }
  ///@}
};

/// D of wgmma.m64nNk16 and m64nNk8, fp32: each warp holds 16 rows, as a row of accumulators of mma.
template <int Columns>
struct wgmma_accumulator_fragment {
  static_assert(Columns % 8 == 0 && Columns >= 8 && Columns <= 256,
                "giwa: wgmma has 8 to 256 columns: choose a multiple of 8.");
  /// (rows, columns), held by `lanes` threads, `elements` each; position(lane, element) is where one belongs.
  ///@{
  static constexpr int rows = 64, columns = Columns, lanes = 128, elements = Columns / 2;
  GIWA_HOST_DEVICE static constexpr tile_position position(int lane, int element) {
    const tile_position in_8 = mma_accumulator_fragment::position(lane % 32, element % 4);
    return {lane / 32 * 16 + in_8.row, element / 4 * 8 + in_8.column};
  }
  ///@}
};

/// A of wgmma.m64nNk16 in registers, 16-bit elements: each warp holds 16 rows, as A of mma. Elements 8 t to 8 t + 7 of an
/// accumulator, rounded to 16 bits and in the same order, are the A whose k are columns 16 t to 16 t + 15 of the
/// accumulator. The same holds for mma.
struct wgmma_a_fragment {
  /// (rows, columns), held by `lanes` threads, `elements` each; position(lane, element) is where one belongs.
  ///@{
  static constexpr int rows = 64, columns = 16, lanes = 128, elements = 8;
  GIWA_HOST_DEVICE static constexpr tile_position position(int lane, int element) {
    const tile_position in_16 = mma_a_fragment::position(lane % 32, element);
    return {lane / 32 * 16 + in_16.row, in_16.column};
  }
  ///@}
};

/// A of wgmma.m64nNk8 in registers, tf32.
struct wgmma_a_tf32_fragment {
  /// (rows, columns), held by `lanes` threads, `elements` each; position(lane, element) is where one belongs.
  ///@{
  static constexpr int rows = 64, columns = 8, lanes = 128, elements = 4;
  GIWA_HOST_DEVICE static constexpr tile_position position(int lane, int element) {
    const tile_position in_16 = mma_a_tf32_fragment::position(lane % 32, element);
    return {lane / 32 * 16 + in_16.row, in_16.column};
  }
  ///@}
};

}  // namespace giwa::inline GIWA_ABI

#endif
