// SPDX-License-Identifier: MIT
// A tile in shared memory: its storage, and access by row and column.
#ifndef GIWA_TILE_SHARED_TILE_HPP
#define GIWA_TILE_SHARED_TILE_HPP

#include <giwa/base/assert.hpp>
#include <giwa/base/std.hpp>
#include <giwa/tile/layout.hpp>
#include <giwa/tile/shape.hpp>

namespace giwa::inline GIWA_ABI {

/// `shared_tile<__half, tile_shape<64, 128>, swizzled<swizzle::bytes_128>>`: the elements of a tile, as a member of an op's
/// shared_storage, uninitialised as that is. Aligned as its layout asks; a tile that is swizzled must also lie in shared
/// memory at an address so aligned, as all that launch() gives an op does.
template <class T, class Shape, class Layout = row_major>
class shared_tile {
 public:
  static_assert(stdlib::is_trivially_copyable_v<T> && stdlib::is_trivially_default_constructible_v<T>,
                "giwa::shared_tile: shared memory starts uninitialised: an element's type has trivial constructors.");
  /// The arguments of the template.
  ///@{
  using value_type = T;
  using shape = Shape;
  using layout = Layout;
  ///@}
  /// The layout for this element and shape.
  using placement = typename Layout::template of<T, Shape>;

  /// The sizes of the tile.
  ///@{
  static constexpr int rows = Shape::rows;
  static constexpr int columns = Shape::columns;
  ///@}
  /// Of the storage, padding included.
  static constexpr int bytes = placement::elements * static_cast<int>(sizeof(T));
  /// Whether the 16 bytes of columns that start at a multiple of 16 bytes lie together, so that chunk() exists.
  static constexpr bool has_chunks = placement::run * sizeof(T) == 16;

  /// The element, 0 <= row < rows and 0 <= column < columns.
  GIWA_HOST_DEVICE constexpr T& operator()(int row, int column) { return storage_[checked_offset(row, column)]; }
  /// The same, to read.
  GIWA_HOST_DEVICE constexpr const T& operator()(int row, int column) const {
    return storage_[checked_offset(row, column)];
  }

  /// The storage, `bytes` long, in the layout's order.
  GIWA_HOST_DEVICE constexpr T* data() { return storage_; }
  /// The same, to read.
  GIWA_HOST_DEVICE constexpr const T* data() const { return storage_; }

  /// The 16 bytes, aligned to 16, that begin with element (row, column), whose column is a multiple of 16 bytes.
  GIWA_HOST_DEVICE constexpr T* chunk(int row, int column)
    requires has_chunks
  {
    return storage_ + chunk_offset(row, column);
  }
  /// The same, to read.
  GIWA_HOST_DEVICE constexpr const T* chunk(int row, int column) const
    requires has_chunks
  {
    return storage_ + chunk_offset(row, column);
  }

 private:
  GIWA_HOST_DEVICE static constexpr int checked_offset(int row, int column) {
    GIWA_ASSERT(0 <= row && row < rows && 0 <= column && column < columns, "the element is outside the tile");
    return placement::offset(row, column);
  }
  GIWA_HOST_DEVICE static constexpr int chunk_offset(int row, int column) {
    GIWA_ASSERT(column % placement::run == 0, "a chunk begins at a column that is a multiple of 16 bytes");
    return checked_offset(row, column);
  }

  alignas(placement::alignment) T storage_[placement::elements];
};

}  // namespace giwa::inline GIWA_ABI

#endif
