// SPDX-License-Identifier: MIT
// Asynchronous copies of tile after tile of a view, for the loop of a kernel.
#ifndef GIWA_TILE_WHOLE_TILES_CUH
#define GIWA_TILE_WHOLE_TILES_CUH

#include <giwa/base/std.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/tile/instructions.cuh>
#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Copies tiles of a view, one below the other, that lie in it as a whole and have rows aligned to 16 bytes, by a group
/// whose size is a constant (with_threads). What does not depend on the tile is computed once, so that a loop over tiles
/// needs few instructions for each. Tile n begins at row n * Tile::rows; the tiles [0, count) are such tiles, and `count` is
/// 0 where rows are not aligned. load_async() has its own form of these checks (load_whole_tile): by this class the kernels
/// of the gradients were 2 to 3 % slower (H100, 2026-11-27).
template <class Tile>
class whole_tiles {
  using element = typename Tile::value_type;
  static constexpr int run = elements_of_16_bytes<element>, inner = Tile::columns / run;
  template <class Group, class V>
  static constexpr bool
      exist =  // in parentheses: NVRTC takes the comma in a template's arguments for one between variables
      (GIWA_ARCH_CAPABILITY >= 80 && stdlib::same_as<stdlib::remove_cv_t<V>, element> && Tile::placement::run == run &&
       Tile::columns % run == 0 && requires { typename stdlib::integral_constant<int, Group::size()>; });

 public:
  int count = 0;

  /// For the tiles from (first_row, first_column) of the view on. Called by each thread of the group.
  template <class Group, class V>
  GIWA_HOST_DEVICE whole_tiles([[maybe_unused]] const Group& group, [[maybe_unused]] const tensor_view<V, 2>& view,
                               [[maybe_unused]] int64 first_row, [[maybe_unused]] int64 first_column) {
    if constexpr (exist<Group, V>) {
      const int64 stride = view.stride(0);  // read once, also if the view is in memory
      // Unsigned, because the offset of a tile outside the view may overflow.
      const uint64 offset =
          static_cast<uint64>(first_row) * static_cast<uint64>(stride) + static_cast<uint64>(first_column);
      const uint64 begin = reinterpret_cast<uint64>(view.data()) + offset * sizeof(element);
      const bool aligned = view.stride(1) == 1 && (begin | static_cast<uint64>(stride) * sizeof(element)) % 16 == 0;
      constexpr int64 longest = (1 << 30) / (Tile::rows * int{sizeof(element)});  // offsets in a tile have 32 bits
      if (!aligned || stride < 0 || stride > longest || first_row < 0 || first_row > view.extent(0) - Tile::rows ||
          first_column < 0 || first_column > view.extent(1) - Tile::columns)
        return;
      count = static_cast<int>((view.extent(0) - first_row) / Tile::rows);
      pitch_ = static_cast<uint32>(stride) * uint32{sizeof(element)};
      first_ = begin;
      if constexpr (step<Group> > 0)
        first_ += static_cast<uint32>(group.rank() / across) * pitch_ + static_cast<uint32>(group.rank() % across) * 16;
    }
  }

  /// Starts the copy of tile n, one of `count`.
  template <class Group>
  GIWA_HOST_DEVICE void start([[maybe_unused]] const Group& group, [[maybe_unused]] int n,
                              [[maybe_unused]] Tile& tile) const {
    if constexpr (exist<Group, element>) {
      const uint64 from = first_ + uint64{static_cast<uint32>(n)} * (pitch_ * uint32{Tile::rows});
      if constexpr (step<Group> > 0) {
        const int first_row = group.rank() / across, first_column = group.rank() % across * run;
        GIWA_UNROLL
        for (int row = 0; row < Tile::rows; row += step<Group>) {
          GIWA_UNROLL
          for (int column = 0; column < Tile::columns; column += across * run)
            arch::copy_async<16>(arch::shared_address(&tile(first_row + row, first_column + column)),
                                 at(from, row, column));
        }
      } else {
        constexpr int size = Group::size(), chunks = Tile::rows * inner;
        GIWA_UNROLL
        for (int i = 0; i < chunks; i += size) {
          const int row = (i + group.rank()) / inner, column = (i + group.rank()) % inner * run;
          if (i + size <= chunks || i + group.rank() < chunks)
            arch::copy_async<16>(arch::shared_address(&tile(row, column)), at(from, row, column));
        }
      }
    }
  }

 private:
  // Eight neighbouring threads copy 128 bytes of a row: the fewest addresses for a tile. 0: rows do not divide so.
  static constexpr int across = inner % 8 == 0 ? 8 : inner;
  template <class Group>
  static constexpr int at_once = Group::size() >= across ? Group::size() / across : 1;
  template <class Group>
  static constexpr int step = (Group::size() % across == 0 && Tile::rows % at_once<Group> == 0 ? at_once<Group> : 0);

  GIWA_HOST_DEVICE const element* at(uint64 from, int row, int column) const {
    return reinterpret_cast<const element*>(from + uint64{pitch_ * static_cast<uint32>(row)}) + column;
  }

  uint64 first_ = 0;  // the address at which this thread begins
  uint32 pitch_ = 0;  // bytes from row to row
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
