// SPDX-License-Identifier: MIT
// The producer warps of the kernel for few rows: they fill the rings of keys and values.
#ifndef GIWA_ATTENTION_CACHED_FEW_ROWS_LOADER_CUH
#define GIWA_ATTENTION_CACHED_FEW_ROWS_LOADER_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/attention/cached/few_rows_types.cuh>
#include <giwa/tile/tensor_box.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Keys past the length are not loaded: what is in their rows of a tile is left from earlier leaves.
template <class Types>
struct few_rows_loader {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using element = typename Types::element;
  static constexpr int leaf_keys = Types::leaf_keys, stages = Types::stages;
  static constexpr int warp_keys = leaf_keys / Types::producers;  // of a leaf, when all warps copy rows

  /// Arrivals that complete a tile.
  GIWA_DEVICE static int arrivals(const params& p) {
    return p.copies == key_copies::boxes ? 1 : 32 * Types::producers;
  }

  /// Loads all leaves of a walk. `warp` is the rank among the producers.
  template <class Block, class Walk>
  GIWA_DEVICE static void run(const Block& block, int warp, const params& p, shared_storage& s, Walk& walk) {
    if (p.copies == key_copies::boxes && warp > 0) return;
    for (uint32 turn = 0; walk.next();) {
      const run_item item = walk.item();
      const packed_rows rows = rows_of(p.call, item, p.group, Types::rows);
      for (int leaf = item.begin; leaf < item.end; ++leaf) {
        if (Types::keep_of(p, rows, leaf) == tile_keep::none) continue;
        const int stage = static_cast<int>(turn % stages);
        const uint32 phase = turn++ / stages & 1;
        if (p.copies == key_copies::boxes)
          load_boxes(block, p, s, item, leaf, stage, phase);
        else
          load_rows(block, warp, p, s, item, leaf, stage, phase);
      }
    }
  }

 private:
  /// One warp, whose lanes issue the boxes of a tile: pages of the cache, or one box.
  template <class Block>
  GIWA_DEVICE static void load_boxes(const Block& block, const params& p, shared_storage& s, const run_item& item,
                                     int leaf, int stage, uint32 phase) {
    const int first_key = leaf * leaf_keys, left = item.sequence.keys - first_key;
    const int boxes = ceil_div(left < leaf_keys ? left : leaf_keys, p.box_rows);
    const int row = block.lane() * p.box_rows;  // at most 32 boxes: box_rows is at least leaf_keys / 32
    cache_row from{-1, 0};
    if (block.lane() < boxes) from = p.call.row_of(item.sequence, first_key + row);
    const auto load = [&](auto& ring, const tensor_map& map) {
      using tile = stdlib::remove_reference_t<decltype(ring.tile[0])>;
      using box = tensor_box<tile>;
      ring.empty[stage].wait(phase ^ 1);
      if (block.lane() == 0) ring.full[stage].arrive_and_expect(boxes * p.box_rows * tile::columns * int{sizeof(element)});
      block.sync_warp();
      if (block.lane() < boxes) {
        GIWA_UNROLL
        for (int i = 0; i * box::columns < tile::columns; ++i) {
          const int at[4] = {i * box::columns, from.row, item.head, from.element};
          arch::load_box(ring.tile[stage].data() + i * box::elements + row * box::columns, map, at, ring.full[stage]);
        }
      }
    };
    load(s.k, p.k);
    load(s.v, p.v);
  }

  /// All producer warps, with a share of the leaf's keys each.
  template <class Block>
  GIWA_DEVICE static void load_rows(const Block& block, int warp, const params& p, shared_storage& s,
                                    const run_item& item, int leaf, int stage, uint32 phase) {
    // A lane looks up the place of one key and the others get it by shuffles.
    const int own = warp * warp_keys + block.lane() % warp_keys, key = leaf * leaf_keys + own;
    const bool exists = key < item.sequence.keys;
    cache_row from{-1, 0};
    if (exists) from = p.call.row_of(item.sequence, key);
    const auto load = [&](auto& ring, const auto& view) {
      ring.empty[stage].wait(phase ^ 1);
      copy_rows(block, warp, p, view, item.head, from, ring.tile[stage]);
      if (p.copies == key_copies::chunks)
        ring.full[stage].arrive_after_copies();
      else
        ring.full[stage].arrive();
    };
    load(s.k, p.call.views.cache.k);
    load(s.v, p.call.views.cache.v);
  }

  /// Copies this warp's keys. `from` is the place of the key of this lane. Columns past the head size become zeros.
  template <class Block, class View, class Tile>
  GIWA_DEVICE static void copy_rows(const Block& block, int warp, const params& p, const View& view, int head,
                                    const cache_row& from, Tile& to) {
    constexpr int run = 16 / static_cast<int>(sizeof(element)), chunks = Tile::columns / run;
    constexpr int lanes = common_power_of_two(chunks, 0, chunks % 32 == 0 ? 32 : chunks % 16 == 0 ? 16 : 8);
    constexpr int at_once = 32 / lanes;
    static_assert(chunks % lanes == 0);
    const int width = static_cast<int>(view.extent(3));
    const element* const base = view.data() + head * view.stride(2);
    GIWA_UNROLL
    for (int first = 0; first < warp_keys; first += at_once) {
      const int row = first + block.lane() / lanes;  // beyond warp_keys where warp_keys < at_once
      const int of_row = block.shuffle(from.element, row), in_row = block.shuffle(from.row, row);
      if (warp_keys % at_once != 0 && row >= warp_keys) continue;
      const element* const source = base + of_row * view.stride(0) + in_row * view.stride(1);
      GIWA_UNROLL
      for (int c = 0; c < chunks; c += lanes) {
        const int column = (c + block.lane() % lanes) * run;
        const int count = of_row < 0 || column >= width ? 0 : width - column < run ? width - column : run;
        element* const target = to.chunk(warp * warp_keys + row, column);
        if (p.copies == key_copies::chunks) {
          arch::copy_async_and_fill(arch::shared_address(target), count == 0 ? base : source + column,
                                    count * static_cast<int>(sizeof(element)));
        } else {
          for (int i = 0; i < run; ++i) target[i] = i < count ? source[column + i] : convert<element>{}(0.f);
        }
      }
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
