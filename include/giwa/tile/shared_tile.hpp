// SPDX-License-Identifier: MIT
// shared_tile: a tile in shared memory, with access by row and column.
#ifndef GIWA_TILE_SHARED_TILE_HPP
#define GIWA_TILE_SHARED_TILE_HPP

#include <giwa/base/assert.hpp>
#include <giwa/base/std.hpp>
#include <giwa/tile/layout.hpp>
#include <giwa/tile/shape.hpp>

namespace giwa::inline GIWA_ABI {

/// The elements of a tile, as a member of an op's shared_storage: `shared_tile<__half, tile_shape<64, 128>,
/// swizzled<swizzle::bytes_128>>`. Starts uninitialised. Its type has the alignment of its layout; a swizzled tile also
/// needs a shared-memory address with that alignment, which launch() provides.
template <class T, class Shape, class Layout = row_major>
class shared_tile {
 public:
  static_assert(
      stdlib::is_trivially_copyable_v<T> && stdlib::is_trivially_default_constructible_v<T>,
      "giwa::shared_tile: shared memory starts uninitialised: use an element type with trivial constructors.");
  /// The template arguments.
  ///@{
  using value_type = T;
  using shape = Shape;
  using layout = Layout;
  ///@}
  /// The layout for this element type and shape; it has offset(row, column).
  using placement = typename Layout::template of<T, Shape>;

  /// The sizes in elements.
  ///@{
  static constexpr int rows = Shape::rows;
  static constexpr int columns = Shape::columns;
  ///@}
  /// The size of the storage in bytes, including padding.
  static constexpr int bytes = placement::elements * static_cast<int>(sizeof(T));
  /// Whether every 16 bytes of a row, from a multiple of 16 bytes on, are contiguous, so that chunk() exists.
  static constexpr bool has_chunks = placement::run * sizeof(T) == 16;

  /// Returns the element at 0 <= row < rows and 0 <= column < columns; checked in checked builds.
  ///@{
  GIWA_HOST_DEVICE constexpr T& operator()(int row, int column) { return storage_[checked_offset(row, column)]; }
  GIWA_HOST_DEVICE constexpr const T& operator()(int row, int column) const {
    return storage_[checked_offset(row, column)];
  }
  ///@}

  /// Returns the storage, `bytes` long, in the order of the layout.
  ///@{
  GIWA_HOST_DEVICE constexpr T* data() { return storage_; }
  GIWA_HOST_DEVICE constexpr const T* data() const { return storage_; }
  ///@}

  /// Returns the 16 bytes, aligned to 16, that begin with element (row, column); the column is a multiple of 16 bytes.
  ///@{
  GIWA_HOST_DEVICE constexpr T* chunk(int row, int column)
    requires has_chunks
  {
    return storage_ + chunk_offset(row, column);
  }
  GIWA_HOST_DEVICE constexpr const T* chunk(int row, int column) const
    requires has_chunks
  {
    return storage_ + chunk_offset(row, column);
  }
  ///@}

 private:
  GIWA_HOST_DEVICE static constexpr int checked_offset(int row, int column) {
    GIWA_ASSERT(0 <= row && row < rows && 0 <= column && column < columns, "the element is outside the tile");
    return placement::offset(row, column);
  }
  GIWA_HOST_DEVICE static constexpr int chunk_offset(int row, int column) {
    GIWA_ASSERT(column % placement::run == 0, "the column of a chunk must be a multiple of 16 bytes");
    return checked_offset(row, column);
  }

  alignas(placement::alignment) T storage_[placement::elements];
};

}  // namespace giwa::inline GIWA_ABI

#endif
