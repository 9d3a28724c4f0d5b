// SPDX-License-Identifier: MIT
// Lists of tiles.
#ifndef GIWA_ATTENTION_WORK_LIST_TILES_HPP
#define GIWA_ATTENTION_WORK_LIST_TILES_HPP

#include <giwa/attention/problem/backward_options.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Lists the tiles of all sequences, tiles_of(n) of n, as entry_of(n, tile), and counts them. Those of a sequence ascend; `together`
/// neighbours, a power of two up to 32, alternate. A warp lists 32 sequences; this one is `number` of `warps`.
template <class Block, class Tiles, class Entry>
GIWA_HOST_DEVICE void list_tiles(const Block& block, int64 number, int64 warps, int64 sequences, int together,
                                 const tile_list& to, const Tiles& tiles_of, const Entry& entry_of) {
  const int lane = block.lane();
  const auto over_lanes = [&](int x, const auto& with) {
    for (int mask = 16; mask > 0; mask /= 2) x = with(x, block.shuffle_xor(x, mask));
    return x;
  };
  int before_of_lane = 0;  // tiles of the earlier sequences of this lane, each of which is counted once
  int64 counted = lane;
  for (int64 first = 32 * number; first < sequences; first += 32 * warps) {
    for (; counted < first; counted += 32) before_of_lane += tiles_of(static_cast<int>(counted));
    const int before = over_lanes(before_of_lane, [](int a, int b) { return a + b; });
    const int n = static_cast<int>(first) + lane, own = n < sequences ? tiles_of(n) : 0;
    const int most = over_lanes(own, [](int a, int b) { return a < b ? b : a; });
    int end = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = block.shuffle_up(end, distance);
      if (lane >= distance) end += other;
    }
    const int leader = lane & -together;
    const uint32 others = ~0u >> (32 - together) << leader, lower = others & ((1u << lane) - 1);
    int at = before + block.shuffle(end - own, leader);
    for (int tile = 0; tile < most; ++tile) {
      const uint32 have = block.ballot(own > tile), place = static_cast<uint32>(at + popcount(have & lower));
      if (own > tile && place < to.room) to.tiles[place] = entry_of(n, tile);  // offsets may lie
      at += popcount(have & others);
    }
    if (lane == 31 && first + 32 >= sequences)
      *to.count = static_cast<uint32>(before + end) < to.room ? before + end : static_cast<int>(to.room);
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
