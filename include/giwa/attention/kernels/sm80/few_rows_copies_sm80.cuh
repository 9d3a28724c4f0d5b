// SPDX-License-Identifier: MIT
// Copies of the kernel for few rows: TMA, cp.async, or by element.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_COPIES_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_COPIES_SM80_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/attention/kernels/sm80/few_rows_types_sm80.cuh>
#include <giwa/tile/tensor_box.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The pointer of another lane, in halves: as one value it may go through local memory, where it is loaded after all copies before.
template <class T, class Block>
GIWA_DEVICE const T* pointer_of_lane(const Block& block, const T* pointer, int lane) {
  const auto bits = reinterpret_cast<uint64>(pointer);
  const uint32 low = block.shuffle(static_cast<uint32>(bits), lane),
               high = block.shuffle(static_cast<uint32>(bits >> 32), lane);
  return reinterpret_cast<const T*>(static_cast<uint64>(high) << 32 | low);
}

/// Keys past the length are not loaded: what is in their rows of a tile is left from earlier leaves.
template <class Types, class Block>
struct few_rows_copies {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using element = typename Types::element;
  static constexpr int leaf_keys = Types::leaf_keys, stages = Types::stages;
  static constexpr int warp_keys = leaf_keys / Types::producers;  // of a leaf, when all warps copy rows
  static constexpr int lane_keys = ceil_div(warp_keys, 32);
  static constexpr bool selects = Types::call_params::selects, copies_bytes = requires {
    requires Types::copies_bytes;
  }, checks_late = !selects && !Types::converts && (!Types::values_are_keys || copies_bytes);

  /// Where the keys of a leaf lie: for the box of this lane, or for keys lane, lane + 32 and so on of this warp.
  struct leaf_source {
    int head, boxes;  // boxes: of this warp
    const int*
        entry[lane_keys];  // of the page table, or null: key.element needs no page; with a selection, of the list
    cache_row key
        [lane_keys];  // element -1: zeros; with a selection, until find_rows(), the end of the numbers, and the number
    [[no_unique_address]] stdlib::conditional_t<selects, int64, nothing> first_entry{};
  };

  /// Where the keys of a leaf of a work tile lie, but for the numbers of their pages or of the list.
  GIWA_DEVICE static leaf_source source_of(const Block& block, int warp, const params& p,
                                           const few_rows_work_tile& work, int leaf_number, bool boxes) {
    const auto& call = p.splits.call;
    const cached_sequence& sequence = work.sequence;
    const int first_key = leaf_number * leaf_keys, left = sequence.keys - first_key;
    leaf_source source{work.head, 0, {}, {}};
    if (boxes) {
      const int all = ceil_div(left < leaf_keys ? left : leaf_keys, p.box_rows);
      source.boxes = (all - warp + issuers(p) - 1) >> p.issuers_log2;
    }
    GIWA_UNROLL
    for (int i = 0; i < lane_keys; ++i) {
      // At most 32 boxes: box_rows is at least leaf_keys / 32.
      const int of_warp = block.lane() + 32 * i;
      const int key = boxes ? ((of_warp << p.issuers_log2) + warp) * p.box_rows : warp * warp_keys + of_warp;
      source.key[i] = {selects ? 0 : -1, 0};
      if (key >= left || key >= leaf_keys || (!boxes && of_warp >= warp_keys)) continue;
      if constexpr (selects) {
        source.key[i].element = sequence.offset;
        source.entry[i] = call.place_of_number(sequence, first_key + key);
        source.first_entry = sequence.first_entry;
        continue;
      }
      source.key[i] = {sequence.batch, first_key + key};
      if (!call.views.is_paged()) continue;
      const int n = static_cast<int>(int64{first_key + key} / call.page_size);
      source.key[i].row -= n * static_cast<int>(call.page_size.divisor());
      source.entry[i] = call.views.cache.pages.indices + (sequence.first_entry + n);
    }
    return source;
  }
  /// Reads page numbers, or those of a list. They are used, by check_pages(), as late as possible: with cp.async, a load returns only
  /// after the copies that the warp started before it. Not so of 8-bit caches and latent rows, whose kernels would spill more.
  GIWA_DEVICE static void read_pages(const params& p, leaf_source& source) {
    const auto checked = [&](int n) {
      return checks_late || selects ? n : valid_page(n, p.splits.call.views.cache.k.extent(0));
    };
    GIWA_UNROLL
    for (int i = 0; i < lane_keys; ++i)
      if (source.entry[i] != nullptr) (selects ? source.key[i].row : source.key[i].element) = checked(*source.entry[i]);
  }
  GIWA_DEVICE static void check_pages([[maybe_unused]] const params& p, [[maybe_unused]] leaf_source& source) {
    if constexpr (checks_late) {
      if (!p.splits.call.views.is_paged()) return;
      GIWA_UNROLL
      for (int i = 0; i < lane_keys; ++i)
        source.key[i].element = valid_page(source.key[i].element, p.splits.call.views.cache.k.extent(0));
    }
  }

  /// Finds the rows that numbers name. As late as possible, because the numbers return only after copies that were started before.
  GIWA_DEVICE static void find_rows([[maybe_unused]] const params& p, [[maybe_unused]] leaf_source& source) {
    if constexpr (selects) {
      GIWA_UNROLL
      for (int i = 0; i < lane_keys; ++i)
        source.key[i] = p.splits.call.row_of_number(source.key[i].row, source.key[i].element, source.first_entry);
    }
  }

  /// Whether keys or values have a scale each. Then all producer warps copy those of their keys, whoever copies the keys.
  GIWA_DEVICE static bool copies_scales([[maybe_unused]] const params& p) {
    if constexpr (Types::converts)
      return p.k_scales || p.v_scales;
    else
      return false;
  }
  /// Whether one warp alone fills the rings.
  GIWA_DEVICE static bool is_alone(const params& p) {
    return p.copies == key_copies::boxes && p.issuers_log2 == 0 && !copies_scales(p);
  }
  /// Warps that start boxes of TMA.
  GIWA_DEVICE static int issuers(const params& p) { return 1 << p.issuers_log2; }

  /// Arrivals that complete a tile.
  GIWA_DEVICE static int arrivals(const params& p) {
    return copies_bytes                    ? Types::producers
           : p.copies != key_copies::boxes ? 32 * Types::producers
           : copies_scales(p)              ? Types::producers
                                           : issuers(p);
  }

  /// Lanes of the issuing warps start the boxes of a tile: pages of the cache or parts of them, or one box.
  template <class Ring>
  GIWA_DEVICE static void load_boxes(const Block& block, int warp, const params& p, const tensor_map& map,
                                     leaf_source source, Ring& ring, int stage, uint32 free) {
    const auto to_key = [&] { return ((block.lane() << p.issuers_log2) + warp) * p.box_rows; };
    start_boxes(block, p, map, source, to_key, ring, stage, free);
  }
  /// to_key(): the key of the tile at which this lane's box begins.
  template <class ToKey, class Ring>
  GIWA_DEVICE static void start_boxes(const Block& block, const params& p, const tensor_map& map, leaf_source source,
                                      const ToKey& to_key, Ring& ring, int stage, uint32 free) {
    using tile = stdlib::remove_reference_t<decltype(ring.tile[0])>;
    using box = tensor_box<tile>;
    ring.empty[stage].wait(free);
    check_pages(p, source);
    if (block.lane() == 0)
      ring.full[stage].arrive_and_expect(source.boxes * p.box_rows * tile::columns * static_cast<int>(sizeof(element)));
    block.sync_warp();
    if (block.lane() >= source.boxes) return;
    element* const to = ring.tile[stage].data() + to_key() * box::columns;
    // The L2 cache then keeps the kernels' instructions: 38.7 us instead of 40.7 for one sequence of 32768 keys, 125 instead
    // of 129 for 256 of 512 (H200, 2026-11-23).
    const auto policy = p.keys_once ? arch::l2_policy::evict_first : arch::l2_policy::normal;
    GIWA_UNROLL
    for (int i = 0; i * box::columns < tile::columns; ++i) {
      const int origin[4] = {i * box::columns, source.key[0].row, source.head, source.key[0].element};
      arch::load_box(to + i * box::elements, map, origin, ring.full[stage], policy);
    }
  }

  /// All producer warps, with a share of the leaf's keys each.
  template <class View, class Ring>
  GIWA_DEVICE static void load_rows(const Block& block, int warp, const params& p, const View& view, leaf_source source,
                                    Ring& ring, int stage, uint32 free) {
    find_rows(p, source);
    ring.empty[stage].wait(free);
    check_pages(p, source);
    if constexpr (copies_bytes)
      copy_row_bytes<warp_keys>(block, row_of_lane(block, view, source), warp * warp_keys, ring.tile[stage],
                                ring.full[stage],
                                p.keys_once && !selects ? arch::l2_policy::evict_first : arch::l2_policy::normal);
    else if (copy_keys(block, warp, p, view, source, ring.tile[stage]))
      ring.full[stage].arrive_after_copies();
    else
      ring.full[stage].arrive();
  }
  /// The row of a lane's key, or null.
  template <class View>
  GIWA_DEVICE static auto row_of_lane(const Block& block, const View& view, const leaf_source& source) {
    static_assert(lane_keys == 1);
    const cache_row& key = source.key[0];
    return key.element < 0 || block.lane() >= warp_keys ? nullptr : &view(key.element, key.row, source.head, 0);
  }
  /// Copies this warp's keys to a tile, and returns whether cp.async does it.
  template <class View, class Tile>
  GIWA_DEVICE static bool copy_keys(const Block& block, int warp, const params& p, const View& view,
                                    const leaf_source& source, Tile& to) {
    constexpr bool by_list_rows = selects && Types::values_are_keys;  // in chunks
    const bool chunks = p.copies == key_copies::chunks;
    if (by_list_rows || !chunks) {
      copy_elements(block, warp, view, source, to);
      return false;
    }
    if constexpr (has_whole_rows<Tile> && !by_list_rows)
      if (view.extent(3) == Tile::columns) {
        copy_whole_rows(block, warp, view, source, to);
        return true;
      }
    if constexpr (!by_list_rows) copy_chunks(block, warp, view, source, to);
    return true;
  }

  /// Copies this warp's keys in chunks of 16 bytes. Columns past the head size become zeros. Each lane works out the address of
  /// its keys, and gets those of the others.
  template <class View, class Tile>
  GIWA_DEVICE static void copy_chunks(const Block& block, int warp, const View& view, const leaf_source& source,
                                      Tile& to) {
    constexpr int run = 16 / static_cast<int>(sizeof(element)), chunks = Tile::columns / run;
    constexpr int lanes = chunks % 8 == 0 ? 8 : 4, at_once = 32 / lanes;
    [[maybe_unused]] constexpr int unrolled = chunks / lanes <= 8 ? 4 : 1;  // addresses of more chunks would spill
    const int width = static_cast<int>(view.extent(3)), first_column = block.lane() % lanes * run;
    const element* const base = view.data() + source.head * view.stride(2);
    GIWA_UNROLL
    for (int i = 0; i < lane_keys; ++i) {
      const cache_row& key_of_lane = source.key[i];
      const element* const row_of_lane =
          key_of_lane.element < 0 ? nullptr
                                  : base + (key_of_lane.element * view.stride(0) + key_of_lane.row * view.stride(1));
#if defined(__CUDA_ARCH__)
#pragma unroll unrolled
#endif
      for (int first = 0; first < (warp_keys < 32 ? warp_keys : 32); first += at_once) {
        const int of_32 = first + block.lane() / lanes, key = 32 * i + of_32;
        const auto* const from =
            reinterpret_cast<const element*>(block.shuffle(reinterpret_cast<uint64>(row_of_lane), of_32));
        GIWA_UNROLL
        for (int c = 0; c < chunks; c += lanes) {
          const int column = c * run + first_column, left = from == nullptr ? 0 : width - column;
          const int count = left < 0 ? 0 : left < run ? left : run;
          if (key < warp_keys)
            arch::copy_async_and_fill(arch::shared_address(to.chunk(warp * warp_keys + key, column)),
                                      count == 0 ? base : from + column, count * static_cast<int>(sizeof(element)));
        }
      }
    }
  }

  /// The same of rows as wide as the tile, whose addresses in it repeat after 8 rows: each lane adds constants to two of them. Few
  /// registers are spilled for these loops, and one that is would be loaded after all copies before.
  template <class View, class Tile>
  GIWA_DEVICE static void copy_whole_rows(const Block& block, int warp, const View& view, const leaf_source& source,
                                          Tile& to) {
    static_assert(has_whole_rows<Tile>);
    constexpr int run = 16 / static_cast<int>(sizeof(element)), lanes = 8, at_once = 32 / lanes;
    const int column = block.lane() % lanes * run, row = warp * warp_keys + block.lane() / lanes;
    element* const to_lane[2] = {to.chunk(row, column), to.chunk(row + at_once, column)};
    GIWA_UNROLL
    for (int i = 0; i < lane_keys; ++i) {
      const cache_row& key = source.key[i];
      const element* const row_of_lane = key.element < 0 ? nullptr : &view(key.element, key.row, source.head, 0);
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
      for (int first = 0; first < (warp_keys < 32 ? warp_keys : 32); first += 2 * at_once) {
        GIWA_UNROLL
        for (int half = 0; half < 2; ++half) {
          const element* const of_row =
              pointer_of_lane(block, row_of_lane, first + at_once * half + block.lane() / lanes);
          const element* const from = (of_row == nullptr ? view.data() : of_row) + column;
          GIWA_UNROLL
          for (int c = 0; c < Tile::columns; c += lanes * run)
            arch::copy_async_and_fill(
                arch::shared_address(to_lane[half] + (Tile::placement::offset(0, c) + (32 * i + first) * lanes * run)),
                from + c, of_row == nullptr ? 0 : 16);
        }
      }
    }
  }
  /// Whether rows of a tile are slabs of 128 bytes, whose swizzle repeats after 8 rows.
  template <class Tile>
  static constexpr bool has_whole_rows =
      !Types::converts && selects == Types::values_are_keys &&
      Tile::columns * static_cast<int>(sizeof(element)) % 128 == 0 && warp_keys % 8 == 0;

  /// The same element by element, a lane for each key.
  template <class View, class Tile>
  GIWA_DEVICE static void copy_elements(const Block& block, int warp, const View& view, const leaf_source& source,
                                        Tile& to) {
    GIWA_UNROLL
    for (int i = 0; i < lane_keys; ++i) {
      const cache_row& from = source.key[i];
      if (block.lane() + 32 * i >= warp_keys) continue;
      const int key = warp * warp_keys + block.lane() + 32 * i;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
      for (int column = 0; column < Tile::columns; ++column)
        to(key, column) = from.element < 0 || column >= view.extent(3)
                              ? convert<element>{}(0.f)
                              : view(from.element, from.row, source.head, column);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
