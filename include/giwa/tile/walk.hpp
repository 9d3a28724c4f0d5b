// SPDX-License-Identifier: MIT
// Iteration over a tile at any position of a view: which thread takes which elements, and which of them are in the view.
#ifndef GIWA_TILE_WALK_HPP
#define GIWA_TILE_WALK_HPP

#include <giwa/base/std.hpp>
#include <giwa/numeric/index.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI {

/// Threads that copy together: a block, or another type with rank() and size() in threads.
template <class Group>
concept thread_group = requires(const Group& group) {
  { group.rank() } -> stdlib::convertible_to<int>;
  { group.size() } -> stdlib::convertible_to<int>;
};

namespace detail {

/// The rows or columns of a tile that lie in a view: [begin, end), counted in the tile.
struct tile_window {
  int begin, end;
  GIWA_HOST_DEVICE constexpr bool contains(int i) const { return begin <= i && i < end; }
};
GIWA_HOST_DEVICE constexpr tile_window window_of(int64 origin, int64 extent, int size) {
  if (origin <= -size || origin >= extent) return {0, 0};  // before any sum that could overflow
  const int64 left = extent - origin;
  return {origin < 0 ? static_cast<int>(-origin) : 0, left < size ? static_cast<int>(left) : size};
}

/// The region of a view that a tile covers. Offsets are in elements and unsigned, because those of elements outside the view
/// may overflow; they are not used.
template <class V>
struct tile_region {
  V* data;
  uint64 offset;       // of the tile's first element
  uint64 row, column;  // strides
  tile_window rows, columns;

  GIWA_HOST_DEVICE tile_region(const tensor_view<V, 2>& view, const giwa::index<2>& origin, int tile_rows,
                               int tile_columns)
      : data(view.data()),
        row(view.extent(0) > 1 ? static_cast<uint64>(view.stride(0)) : 0),  // a single row may have any stride
        column(view.extent(1) > 1 ? static_cast<uint64>(view.stride(1)) : 1),
        rows(window_of(origin[0], view.extent(0), tile_rows)),
        columns(window_of(origin[1], view.extent(1), tile_columns)) {
    offset = static_cast<uint64>(origin[0]) * row + static_cast<uint64>(origin[1]) * column;
    if (rows.end == 0) columns = {0, 0};
    if (columns.end == 0) rows = {0, 0};
  }
  GIWA_HOST_DEVICE V* at(uint64 element) const { return data + static_cast<int64>(element); }

  /// Returns bits whose lowest set bit is the number of bytes of a row that may move at once: runs of so many bytes are
  /// aligned, and each lies either inside or outside the view. For column == 1.
  GIWA_HOST_DEVICE unsigned alignment_bits() const {
    if (columns.end == 0) return 0;  // nothing is read
    const uint64 begin = reinterpret_cast<stdlib::uintptr_t>(data) + offset * sizeof(V);
    return static_cast<unsigned>(begin | row * sizeof(V)) |
           static_cast<unsigned>(columns.begin | columns.end) * static_cast<unsigned>(sizeof(V));
  }
};

/// A thread's part of Inner x Outer items; neighbouring threads take neighbours in Inner. The thread takes `inner`, `inner +
/// across`, and so on, and for each of them `outer`, `outer + step`, and so on. Usually it has a single `inner`, and
/// everything that depends on it stays in registers.
struct thread_part {
  int inner, across, outer, step;
};
template <int Inner, thread_group Group>
GIWA_HOST_DEVICE thread_part part_of(const Group& group) {
  const int rank = group.rank(), size = group.size();
  if (Inner > size) return {rank, size, 0, 1};
  const int step = size / Inner, outer = rank / Inner;
  const bool busy = size % Inner == 0 || outer < step;  // up to Inner - 1 threads have no items
  return {busy ? rank % Inner : Inner, Inner, outer, step};
}

/// Returns the distance in Outer between a thread's items if the size of the group is a constant (with_threads) and every
/// thread has the same number of items, all with one `inner`; otherwise 0.
template <int Inner, int Outer, class Group>
GIWA_HOST_DEVICE constexpr int constant_step() {
  if constexpr (requires { typename stdlib::integral_constant<int, Group::size()>; }) {
    constexpr int size = Group::size(), step = size / Inner;
    return size % Inner == 0 && step > 0 && Outer % (step > 0 ? step : 1) == 0 ? step : 0;
  } else {
    return 0;
  }
}

/// The order of the items of a tile: runs along the rows, or single elements down the columns.
template <int Run, bool Down, class Tile>
struct tile_walk {
  static constexpr int inner = Down ? Tile::rows : Tile::columns / Run;
  static constexpr int outer = Down ? Tile::columns : Tile::rows;

  /// Calls visit(i, outer, step, window, at, pitch) for each `i` of this thread. Its items are (i, outer), (i, outer + step),
  /// and so on; the first is at offset `at` of the view, each next one `pitch` further. Items in the window are in the view.
  template <class Group, class V, class Visit>
  GIWA_HOST_DEVICE static void for_each_inner(const Group& group, const tile_region<V>& region, Visit visit) {
    const thread_part part = part_of<inner>(group);
    const uint64 inner_stride = Down ? region.row : region.column * Run, stride = Down ? region.column : region.row;
    const tile_window inner_window = Down ? region.rows : region.columns;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int i = part.inner; i < inner; i += part.across) {
      const bool inside = inner_window.contains(Down ? i : i * Run);
      const tile_window window = inside ? (Down ? region.columns : region.rows) : tile_window{0, 0};
      const uint64 at =
          region.offset + static_cast<uint64>(i) * inner_stride + static_cast<uint64>(part.outer) * stride;
      visit(i, part.outer, part.step, window, at, static_cast<uint64>(part.step) * stride);
    }
  }
  GIWA_HOST_DEVICE static constexpr int row(int i, int o) { return Down ? i : o; }
  GIWA_HOST_DEVICE static constexpr int column(int i, int o) { return Down ? o : i * Run; }
};

}  // namespace detail
}  // namespace giwa::inline GIWA_ABI

#endif
