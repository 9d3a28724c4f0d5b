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
  GIWA_DEVICE static int arrivals(const params& p) { return p.copies == key_copies::boxes ? 1 : 32 * Types::producers; }

  /// Loads all leaves of a walk. `warp` is the rank among the producers. Places are looked up one leaf ahead: a load from
  /// the page table returns only after the copies that the warp started before it.
  template <class Block, class Walk>
  GIWA_DEVICE static void run(const Block& block, int warp, const params& p, shared_storage& s, Walk& walk) {
    if (p.copies == key_copies::boxes && warp > 0) return;
    leaves_to_load<Walk> list{p, walk};
    if (!list.next()) return;
    leaf_places at = places_of(block, warp, p, list);
    for (uint32 turn = 0;; ++turn) {
      const bool more = list.next();
      leaf_places next{};
      if (more) next = places_of(block, warp, p, list);
      const int stage = static_cast<int>(turn % stages);
      const uint32 free = (turn / stages & 1) ^ 1;
      if (p.copies == key_copies::boxes) {
        load_boxes(block, p, p.k, at, s.k, stage, free);
        load_boxes(block, p, p.v, at, s.v, stage, free);
      } else {
        load_rows(block, warp, p, p.runs.call.views.cache.k, at, s.k, stage, free);
        load_rows(block, warp, p, p.runs.call.views.cache.v, at, s.v, stage, free);
      }
      if (!more) return;
      at = next;
    }
  }

 private:
  /// The leaves of a walk that are not masked, one after the other.
  template <class Walk>
  struct leaves_to_load {
    const params& p;
    Walk& walk;
    int leaf = 0, end = 0;
    packed_rows rows{};
    GIWA_DEVICE bool next() {
      for (++leaf;; ++leaf) {
        while (leaf >= end) {
          if (!walk.next()) return false;
          rows = rows_of(p.runs.call, walk.item(), p.runs.group, Types::rows);
          leaf = walk.item().begin, end = walk.item().end;
        }
        if (Types::keep_of(p.runs.call, rows, leaf) != tile_keep::none) return true;
      }
    }
  };

  /// Where the keys of a leaf lie: for the box of this lane, or for the key of this lane.
  struct leaf_places {
    int head, boxes;
    cache_row own;  // element -1: zeros
  };
  template <class Block, class List>
  GIWA_DEVICE static leaf_places places_of(const Block& block, int warp, const params& p, const List& list) {
    const run_item& item = list.walk.item();
    const int first_key = list.leaf * leaf_keys, left = item.sequence.keys - first_key;
    leaf_places at{item.head, 0, {-1, 0}};
    int own = warp * warp_keys + block.lane() % warp_keys;  // of the leaf's keys
    if (p.copies == key_copies::boxes) {
      own = block.lane() * p.box_rows;  // at most 32 boxes: box_rows is at least leaf_keys / 32
      at.boxes = ceil_div(left < leaf_keys ? left : leaf_keys, p.box_rows);
    }
    if (own < left && own < leaf_keys) at.own = p.runs.call.row_of(item.sequence, first_key + own);
    return at;
  }

  /// One warp, whose lanes issue the boxes of a tile: pages of the cache or parts of them, or one box.
  template <class Block, class Ring>
  GIWA_DEVICE static void load_boxes(const Block& block, const params& p, const tensor_map& map, const leaf_places& at,
                                     Ring& ring, int stage, uint32 free) {
    using tile = stdlib::remove_reference_t<decltype(ring.tile[0])>;
    using box = tensor_box<tile>;
    ring.empty[stage].wait(free);
    if (block.lane() == 0)
      ring.full[stage].arrive_and_expect(at.boxes * p.box_rows * tile::columns * static_cast<int>(sizeof(element)));
    block.sync_warp();
    if (block.lane() >= at.boxes) return;
    element* const to = ring.tile[stage].data() + block.lane() * p.box_rows * box::columns;
    GIWA_UNROLL
    for (int i = 0; i * box::columns < tile::columns; ++i) {
      const int origin[4] = {i * box::columns, at.own.row, at.head, at.own.element};
      arch::load_box(to + i * box::elements, map, origin, ring.full[stage]);
    }
  }

  /// All producer warps, with a share of the leaf's keys each.
  template <class Block, class View, class Ring>
  GIWA_DEVICE static void load_rows(const Block& block, int warp, const params& p, const View& view,
                                    const leaf_places& at, Ring& ring, int stage, uint32 free) {
    ring.empty[stage].wait(free);
    copy_rows(block, warp, p, view, at.head, at.own, ring.tile[stage]);
    if (p.copies == key_copies::chunks)
      ring.full[stage].arrive_after_copies();
    else
      ring.full[stage].arrive();
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
