// SPDX-License-Identifier: MIT
// Layouts: the offset of element (row, column) in the storage of a tile, for any element type and shape.
#ifndef GIWA_TILE_LAYOUT_HPP
#define GIWA_TILE_LAYOUT_HPP

#include <giwa/arch/swizzle.hpp>
#include <giwa/base/std.hpp>
#include <giwa/tile/shape.hpp>

// A layout is a type with a member template `of<T, Shape>` that has
//   elements      the size of the storage in elements, including padding
//   alignment     the alignment of the storage in bytes
//   run           the number of columns, from a multiple of it on, that are contiguous and aligned to their size: a power of
//                 two, of at most 16 bytes
//   offset(r, c)  the offset of element (r, c) in elements
// and, if rows or columns are permuted within periods,
//   pitch, period_rows, period_columns   offset(r + a, c + b) is offset(r, c) + a * pitch + b for multiples a and b of
//                 the periods
//
// Bank conflicts: shared memory has 32 banks of 4 bytes. Accesses of 16 bytes are served for 8 lanes at a time; ldmatrix
// reads 8 rows of 16 bytes at a time.

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Returns the largest power of two that divides both a and b, at most `limit`. Every number divides zero.
GIWA_HOST_DEVICE constexpr int common_power_of_two(int a, int b, int limit) {
  int power = 1;
  while (2 * power <= limit && a % (2 * power) == 0 && b % (2 * power) == 0) power *= 2;
  return power;
}

/// The most elements of one access: 16 bytes, or one element if its size does not divide 16.
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

/// Contiguous rows without gaps. TMA without a swizzle writes this layout. For tiles that are read along their rows: 32 rows
/// of a column share 32 / p banks, where p is the largest power of two that divides the words of a row.
struct row_major {
  /// The layout of a tile of this shape.
  template <class T, class Shape>
  struct of : detail::pitched_rows<T, Shape, Shape::columns> {
    /// The alignment of the storage in bytes.
    static constexpr int alignment = alignof(T) < 128 ? 128 : int{alignof(T)};  // 128: the target of a copy by TMA
  };
};

/// Rows with `Elements` unused elements after each. padded<16 / sizeof(T)>, 16 bytes, makes ldmatrix free of bank conflicts
/// if a row is a multiple of 32 bytes. padded<4 / sizeof(T)>, one word, makes reads down a column free of bank conflicts if
/// a row is a multiple of 8 bytes.
template <int Elements>
struct padded {
  static_assert(Elements >= 0, "giwa::padded: the number of unused elements of a row must not be negative.");
  /// The layout of a tile of this shape.
  template <class T, class Shape>
  struct of : detail::pitched_rows<T, Shape, Shape::columns + Elements> {
    /// The alignment of the storage in bytes.
    static constexpr int alignment = alignof(T) < 16 ? 16 : int{alignof(T)};
  };
};

/// Rows in pairs, with 32 unused bytes after each pair, and with the two chunks of 16 bytes in each 32 bytes of an odd row
/// exchanged. ldmatrix and 16-byte accesses are free of bank conflicts, as in rows with 16 unused bytes, and 32 bytes of a row
/// stay 32 aligned bytes: cp.async reads what it copies in sectors of 32 bytes, and reads a sector twice if its halves go to
/// different sectors of shared memory. Rows are a multiple of 32 bytes.
struct paired {
  /// The layout of a tile of this shape.
  template <class T, class Shape>
  struct of {
    static_assert(sizeof(T) <= 16 && 16 % sizeof(T) == 0,
                  "giwa::paired: use elements of 1, 2, 4, 8 or 16 bytes, because chunks of 16 bytes are exchanged.");
    static_assert(Shape::columns * static_cast<int>(sizeof(T)) % 32 == 0 && Shape::rows % 2 == 0,
                  "giwa::paired: make a row a multiple of 32 bytes, and the rows an even number.");

    /// `elements`, `alignment`, `run` and offset(row, column): see the head of this file. The elements of a pair of rows.
    ///@{
    static constexpr int alignment = 32;
    static constexpr int run = detail::elements_of_16_bytes<T>;
    static constexpr int pitch = Shape::columns + run, period_rows = 2, period_columns = 2 * run;
    static constexpr int elements = Shape::rows * pitch;

    GIWA_HOST_DEVICE static constexpr int offset(int row, int column) {
      const int odd = row & 1;
      return row * pitch - odd * run + (column ^ odd * run);
    }
    ///@}
  };
};

/// The layout that TMA with this swizzle writes and wgmma reads. The columns are divided into slabs of the swizzle's span;
/// the slabs are stored one after the other, each (rows, span bytes) and swizzled. With 128 bytes, 16-byte accesses along
/// rows and down columns and ldmatrix are free of bank conflicts.
template <swizzle Swizzle>
struct swizzled {
  /// The layout of a tile of this shape.
  template <class T, class Shape>
  struct of {
    static_assert(sizeof(T) <= 16 && 16 % sizeof(T) == 0,
                  "giwa::swizzled: use elements of 1, 2, 4, 8 or 16 bytes, because chunks of 16 bytes are swizzled.");
    static_assert(
        Shape::columns * static_cast<int>(sizeof(T)) % span_of(Swizzle) == 0,
        "giwa::swizzled: make a row a multiple of the swizzle's span: choose more columns or a smaller span.");
    static_assert(Shape::rows % 8 == 0,
                  "giwa::swizzled: the pattern repeats every 8 rows: choose a multiple of 8 rows.");

    /// `elements`, `alignment`, `run` and offset(row, column): see the head of this file. The columns and elements of a slab.
    ///@{
    static constexpr int elements = Shape::size;
    static constexpr int alignment = 8 * span_of(Swizzle);
    static constexpr int run = detail::elements_of_16_bytes<T>;
    static constexpr int slab_columns = span_of(Swizzle) / int{sizeof(T)};
    static constexpr int slab_elements = Shape::rows * slab_columns;

    GIWA_HOST_DEVICE static constexpr int offset(int row, int column) {
      // The swizzle permutes the chunks of a row; the exchange is its effect on the row's first byte. In this form, and
      // unsigned, the compiler sees that the offsets of rows r and r + 8 differ by a constant.
      const int first = swizzled_offset(Swizzle, row * span_of(Swizzle)) & (span_of(Swizzle) - 1);
      const unsigned exchange = static_cast<unsigned>(first) / unsigned{sizeof(T)};
      const auto at = static_cast<unsigned>(column);
      return static_cast<int>(at / slab_columns * slab_elements + (at % slab_columns ^ exchange)) + row * slab_columns;
    }
    ///@}
  };
};

/// Rows without padding whose 32-bit words are permuted, for transposes: 32 lanes access 32 elements of a row, or 32 rows of
/// a column, without bank conflicts. The index of a word in its row is XORed with the row number, inside groups whose size
/// is the power of two that divides the words of a row.
struct transposable {
  /// The layout of a tile of this shape.
  template <class T, class Shape>
  struct of {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "giwa::transposable: use elements of 2 or 4 bytes.");
    static_assert(sizeof(T) == 4 || Shape::columns % 2 == 0,
                  "giwa::transposable: choose an even number of columns for elements of 2 bytes.");

    /// `elements`, `alignment`, `run` and offset(row, column): see the head of this file. Elements of a word, words of a group.
    ///@{
    static constexpr int per_word = 4 / static_cast<int>(sizeof(T));
    static constexpr int group = detail::common_power_of_two(Shape::columns / per_word, 0, 32);  // words
    static constexpr int elements = Shape::size;
    static constexpr int alignment = 128;
    static constexpr int run = per_word;

    GIWA_HOST_DEVICE static constexpr int offset(int row, int column) {
      // If a group has fewer than 32 words, 32 / group rows share the 32 banks and start at different ones.
      const unsigned exchange = static_cast<unsigned>(row) / (32 / group) % group * per_word;
      return row * Shape::columns + (column ^ static_cast<int>(exchange));
    }
    ///@}
  };
};

}  // namespace giwa::inline GIWA_ABI

#endif
