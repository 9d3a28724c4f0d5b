// SPDX-License-Identifier: MIT
// Walking a tile that lies anywhere in a view: which thread takes which elements, and which of them the view has.
#ifndef GIWA_TILE_WALK_HPP
#define GIWA_TILE_WALK_HPP

#include <giwa/base/std.hpp>
#include <giwa/numeric/index.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI {

/// The threads that copy together: a block, or anything else that numbers its threads.
template <class Group>
concept thread_group = requires(const Group& group) {
  { group.rank() } -> stdlib::convertible_to<int>;
  { group.size() } -> stdlib::convertible_to<int>;
};

namespace detail {

/// The rows (or columns) of a tile that lie in a view: [begin, end), counted in the tile.
struct tile_window {
  int begin, end;
  GIWA_HOST_DEVICE constexpr bool contains(int i) const { return begin <= i && i < end; }
};
GIWA_HOST_DEVICE constexpr tile_window window_of(int64 origin, int64 extent, int size) {
  if (origin <= -size || origin >= extent) return {0, 0};  // before any sum that could overflow
  const int64 left = extent - origin;
  return {origin < 0 ? static_cast<int>(-origin) : 0, left < size ? static_cast<int>(left) : size};
}

/// Where a tile lies in a view. Offsets are in elements and wrap: those of elements outside the view are never used.
template <class V>
struct tile_place {
  V* data;
  uint64 offset;       // of the tile's first element
  uint64 row, column;  // strides
  tile_window rows, columns;

  GIWA_HOST_DEVICE tile_place(const tensor_view<V, 2>& view, const giwa::index<2>& origin, int tile_rows,
                              int tile_columns)
      : data(view.data()),
        row(view.extent(0) > 1 ? static_cast<uint64>(view.stride(0)) : 0),  // a single row's stride may be anything
        column(view.extent(1) > 1 ? static_cast<uint64>(view.stride(1)) : 1),
        rows(window_of(origin[0], view.extent(0), tile_rows)),
        columns(window_of(origin[1], view.extent(1), tile_columns)) {
    offset = static_cast<uint64>(origin[0]) * row + static_cast<uint64>(origin[1]) * column;
    if (rows.end == 0) columns = {0, 0};
    if (columns.end == 0) rows = {0, 0};
  }
  GIWA_HOST_DEVICE V* at(uint64 place) const { return data + static_cast<int64>(place); }

  /// Bits of which the lowest that is set says how many bytes of a row may be moved at once: any two neighbouring runs of
  /// so many bytes are aligned, and each lies in the view or outside it. For column == 1.
  GIWA_HOST_DEVICE unsigned alignment_bits() const {
    if (columns.end == 0) return 0;  // nothing is read
    const uint64 begin = reinterpret_cast<stdlib::uintptr_t>(data) + offset * sizeof(V);
    return static_cast<unsigned>(begin | row * sizeof(V)) |
           static_cast<unsigned>(columns.begin | columns.end) * static_cast<unsigned>(sizeof(V));
  }
};

/// A thread's part of Inner x Outer items, neighbours in Inner to neighbouring threads: it takes `inner`, `inner + across`, …
/// and of each `outer`, `outer + step`, … Mostly that is a single `inner`, and all that depends on it stays in registers.
struct thread_part {
  int inner, across, outer, step;
};
template <int Inner, thread_group Group>
GIWA_HOST_DEVICE thread_part part_of(const Group& group) {
  const int rank = group.rank(), size = group.size();
  if (Inner > size) return {rank, size, 0, 1};
  const int step = size / Inner, outer = rank / Inner;
  const bool busy = size % Inner == 0 || outer < step;  // up to Inner - 1 threads are left over
  return {busy ? rank % Inner : Inner, Inner, outer, step};
}

/// The distance in Outer between a thread's items, if a group's size is known at compile time (with_threads) and each thread
/// has as many items as every other, all of one `inner`; else 0.
template <int Inner, int Outer, class Group>
GIWA_HOST_DEVICE constexpr int constant_step() {
  if constexpr (requires { typename stdlib::integral_constant<int, Group::size()>; }) {
    constexpr int size = Group::size(), step = size / Inner;
    return size % Inner == 0 && step > 0 && Outer % (step > 0 ? step : 1) == 0 ? step : 0;
  } else {
    return 0;
  }
}

/// How a tile and a view are walked: by runs along the rows, or element by element down the columns.
template <int Run, bool Down, class Tile>
struct tile_walk {
  static constexpr int inner = Down ? Tile::rows : Tile::columns / Run;
  static constexpr int outer = Down ? Tile::columns : Tile::rows;

  /// Calls visit(i, outer, step, window, at, hop) for each `i` of this thread: its items there are (i, outer), (i, outer +
  /// step), …; the first lies at `at`, the others `hop` apart, and those in the window are in the view.
  template <class Group, class V, class Visit>
  GIWA_HOST_DEVICE static void each_inner(const Group& group, const tile_place<V>& place, Visit visit) {
    const thread_part part = part_of<inner>(group);
    const uint64 inner_stride = Down ? place.row : place.column * Run, stride = Down ? place.column : place.row;
    const tile_window inner_window = Down ? place.rows : place.columns;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int i = part.inner; i < inner; i += part.across) {
      const bool inside = inner_window.contains(Down ? i : i * Run);
      const tile_window window = inside ? (Down ? place.columns : place.rows) : tile_window{0, 0};
      const uint64 at = place.offset + static_cast<uint64>(i) * inner_stride + static_cast<uint64>(part.outer) * stride;
      visit(i, part.outer, part.step, window, at, static_cast<uint64>(part.step) * stride);
    }
  }
  GIWA_HOST_DEVICE static constexpr int row(int i, int o) { return Down ? i : o; }
  GIWA_HOST_DEVICE static constexpr int column(int i, int o) { return Down ? o : i * Run; }
};

}  // namespace detail
}  // namespace giwa::inline GIWA_ABI

#endif
