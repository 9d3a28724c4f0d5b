// SPDX-License-Identifier: MIT
// Layouts: where a tile's element (row, column) lies in its storage, for any element type and shape.
#ifndef GIWA_TILE_LAYOUT_HPP
#define GIWA_TILE_LAYOUT_HPP

#include <giwa/arch/swizzle.hpp>
#include <giwa/base/std.hpp>
#include <giwa/tile/shape.hpp>

// A layout is a type with a member template `of<T, Shape>` that tells
//   elements      the size of the storage in elements, padding included
//   alignment     what the storage must be aligned to, in bytes
//   run           so many columns, starting at a multiple of that, lie together and aligned to their size: a power of two
//                 of at most 16 bytes
//   offset(r, c)  where element (r, c) lies, in elements
//
// Bank conflicts are counted as the hardware has them: 32 banks of 4 bytes; accesses of 16 bytes are served for 8 lanes at a
// time; ldmatrix reads 8 rows of 16 bytes at a time.

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The largest power of two that divides both, at most `limit`; a zero is divided by all.
GIWA_HOST_DEVICE constexpr int common_power_of_two(int a, int b, int limit) {
  int power = 1;
  while (2 * power <= limit && a % (2 * power) == 0 && b % (2 * power) == 0) power *= 2;
  return power;
}

/// The most elements of one access: 16 bytes of them, where a number of them can have a power of two of bytes.
template <class T>
inline constexpr int elements_of_16_bytes = 16 % sizeof(T) == 0 ? int{16 / sizeof(T)} : 1;

/// Rows of `Pitch` elements, one after the other.
template <class T, class Shape, int Pitch>
struct pitched_rows {
  static constexpr int elements = Shape::rows * Pitch;
  static constexpr int run = common_power_of_two(Shape::columns, Pitch, elements_of_16_bytes<T>);
  GIWA_HOST_DEVICE static constexpr int offset(int row, int column) { return row * Pitch + column; }
};

}  // namespace detail

/// Rows one after the other, without gaps. What tensor copies without a swizzle write, and the choice for tiles that are read
/// along their rows. 32 rows of a column share 32 / p banks, p the largest power of two that divides the words of a row.
struct row_major {
  /// The layout of a tile of this shape.
  template <class T, class Shape>
  struct of : detail::pitched_rows<T, Shape, Shape::columns> {
    /// offset(row, column) in `elements` of storage; `run` neighbours of a row lie together; `alignment` in bytes.
    ///@{
    static constexpr int alignment = alignof(T) < 128 ? 128 : int{alignof(T)};  ///< 128: a tensor copy's target
    ///@}
  };
};

/// Rows one after the other, each with so many elements added to it: padded<16 / sizeof(T)>, 16 bytes, frees ldmatrix of
/// conflicts where a row is a multiple of 32 bytes; padded<4 / sizeof(T)>, one word, frees reading a column of them where it
/// is a multiple of 8.
template <int Elements>
struct padded {
  static_assert(Elements >= 0, "giwa::padded: the number of elements added to each row is not negative.");
  /// The layout of a tile of this shape.
  template <class T, class Shape>
  struct of : detail::pitched_rows<T, Shape, Shape::columns + Elements> {
    /// offset(row, column) in `elements` of storage; `run` neighbours of a row lie together; `alignment` in bytes.
    ///@{
    static constexpr int alignment = alignof(T) < 16 ? 16 : int{alignof(T)};
    ///@}
  };
};

/// What a tensor copy (TMA) with this swizzle writes, and wgmma reads: the columns are cut in slabs of the swizzle's span,
/// which lie one after the other, each (rows, span bytes) and swizzled. Free of conflicts with 128 bytes: 16-byte accesses
/// along rows and down columns, and ldmatrix.
template <swizzle Swizzle>
struct swizzled {
  /// The layout of a tile of this shape.
  template <class T, class Shape>
  struct of {
    static_assert(sizeof(T) <= 16 && 16 % sizeof(T) == 0,
                  "giwa::swizzled: an element has 1, 2, 4, 8 or 16 bytes, as it moves in chunks of 16.");
    static_assert(
        Shape::columns * static_cast<int>(sizeof(T)) % span_of(Swizzle) == 0,
        "giwa::swizzled: a row is a whole number of the swizzle's spans; choose more columns or a smaller span.");
    static_assert(Shape::rows % 8 == 0,
                  "giwa::swizzled: the pattern repeats every 8 rows; choose a multiple of 8 rows.");

    /// offset(row, column) in `elements` of storage; `run` neighbours of a row lie together; `alignment` in bytes.
    ///@{
    static constexpr int elements = Shape::size;
    static constexpr int alignment = 8 * span_of(Swizzle);
    static constexpr int run = detail::elements_of_16_bytes<T>;
    static constexpr int slab_columns = span_of(Swizzle) / int{sizeof(T)};
    static constexpr int slab_elements = Shape::rows * slab_columns;

    GIWA_HOST_DEVICE static constexpr int offset(int row, int column) {
      // The swizzle moves chunks within their row only: by what it does to the row's first byte. Said this way, and without
      // signs, the compiler sees that rows eight apart differ by a constant.
      const int first = swizzled_offset(Swizzle, row * span_of(Swizzle)) & (span_of(Swizzle) - 1);
      const unsigned exchange = static_cast<unsigned>(first) / unsigned{sizeof(T)};
      const auto at = static_cast<unsigned>(column);
      return static_cast<int>(at / slab_columns * slab_elements + (at % slab_columns ^ exchange)) + row * slab_columns;
    }
    ///@}
  };
};

/// Rows one after the other, with the 32-bit words of each row exchanged so that 32 lanes read or write 32 elements of a row,
/// and 32 rows of a column, without conflicts, and no padding: for transposing. The words of a row are XORed, in groups of
/// the power of two that divides their number, with the rows' number.
struct transposable {
  /// The layout of a tile of this shape.
  template <class T, class Shape>
  struct of {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "giwa::transposable: an element has 2 or 4 bytes.");
    static_assert(sizeof(T) == 4 || Shape::columns % 2 == 0,
                  "giwa::transposable: with elements of 2 bytes a row has an even number of columns.");

    /// offset(row, column) in `elements` of storage; `run` neighbours of a row lie together; `alignment` in bytes.
    ///@{
    static constexpr int per_word = 4 / static_cast<int>(sizeof(T));
    static constexpr int group = detail::common_power_of_two(Shape::columns / per_word, 0, 32);  // words
    static constexpr int elements = Shape::size;
    static constexpr int alignment = 128;
    static constexpr int run = per_word;

    GIWA_HOST_DEVICE static constexpr int offset(int row, int column) {
      // A group of fewer than 32 words shares the banks with 32 / group rows, which start at different banks anyway.
      const unsigned exchange = static_cast<unsigned>(row) / (32 / group) % group * per_word;
      return row * Shape::columns + (column ^ static_cast<int>(exchange));
    }
    ///@}
  };
};

}  // namespace giwa::inline GIWA_ABI

#endif
