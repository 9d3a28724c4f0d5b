// SPDX-License-Identifier: MIT
// Copies of rows that lists name.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_LISTS_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_LISTS_SM80_CUH

#include <giwa/attention/kernels/sm80/few_rows_copies_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The rows of a tile that a warp copies by cp.async, all as wide as the tile, whose addresses in it repeat after 8 rows. Each lane adds
/// constants to the addresses of few rows and two places, which are worked out before the stage is free.
template <class Types, class Block>
struct list_rows {
  using copies = few_rows_copies<Types, Block>;
  using element = typename Types::element;
  using tile = typename Types::k_tile;
  static constexpr int run = 16 / static_cast<int>(sizeof(element)), lanes = 8, at_once = 32 / lanes;
  static constexpr int warp_keys = copies::warp_keys, count = warp_keys / at_once;
  static_assert(copies::template has_whole_rows<tile> && warp_keys % at_once == 0);

  const element *from[count], *zeros;  // null: zeros
  uint32 to[2];

  /// Lanes first_lane, first_lane + 1 and so on have the addresses of the rows. `memory` is anywhere in the cache.
  GIWA_DEVICE list_rows(const Block& block, int warp, const element* row_of_lane, int first_lane, const element* memory,
                        tile& of)
      : zeros(memory) {
    const int column = block.lane() % lanes * run, row = block.lane() / lanes;
    GIWA_UNROLL
    for (int i = 0; i < count; ++i) {
      from[i] = pointer_of_lane(block, row_of_lane, first_lane + at_once * i + row);
      if (from[i] != nullptr) from[i] += column;
    }
    GIWA_UNROLL
    for (int i = 0; i < 2; ++i) to[i] = arch::shared_address(of.chunk(warp * warp_keys + at_once * i + row, column));
  }
  /// Starts the copies of slabs of 128 bytes.
  GIWA_DEVICE void start(int first_slab, int end_slab, arch::l2_policy policy) const {
    GIWA_UNROLL
    for (int slab = first_slab; slab < end_slab; ++slab) GIWA_UNROLL
    for (int i = 0; i < count; ++i)
      arch::copy_async_and_fill(to[i % 2] + (slab * Types::leaf_keys + i / 2 * lanes) * lanes * 16,
                                (from[i] == nullptr ? zeros : from[i]) + slab * lanes * run,
                                from[i] == nullptr ? 0 : 16, policy);
  }
};

/// Numbers of a list for several tiles, which the lanes of a warp look up at once: a tile's keys of this warp are those of warp_keys lanes.
template <class Types, class Block>
struct list_numbers {
  using copies = few_rows_copies<Types, Block>;
  using element = typename Types::element;
  static constexpr int warp_keys = copies::warp_keys, tiles_at_once = 32 / warp_keys, of_lane = 2,
                       tiles = tiles_at_once * of_lane;
  int number[of_lane];  // -1 past the end

  /// Reads the numbers of `tiles` tiles from `first` on.
  template <class Call>
  GIWA_DEVICE void read(const Block& block, int warp, const Call& call, const cached_sequence& list, int first) {
    GIWA_UNROLL
    for (int i = 0; i < of_lane; ++i) {
      const int tile = first + tiles_at_once * i + block.lane() / warp_keys;
      const int key = tile * Types::leaf_keys + warp * warp_keys + block.lane() % warp_keys;
      number[i] = key < list.keys ? *call.place_of_number(list, key) : -1;
    }
  }
  /// The rows that they name, or null.
  template <class Call>
  GIWA_DEVICE void find(const Call& call, const cached_sequence& list, int head,
                        const element* (&rows)[of_lane]) const {
    GIWA_UNROLL
    for (int i = 0; i < of_lane; ++i) {
      const cache_row at = call.row_of_number(number[i], list.offset, list.first_entry);
      rows[i] = at.element < 0 ? nullptr : &call.views.cache.k(at.element, at.row, head, 0);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
