// SPDX-License-Identifier: MIT
// The loader of many latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_LOADER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_LOADER_SM90_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/sm80/few_rows_lists_sm80.cuh>
#include <giwa/attention/kernels/sm80/rows_656_sm80.cuh>
#include <giwa/attention/kernels/sm90/latent_wide_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A producer warp.
template <class Types, class Block>
struct latent_wide_loader : few_rows_copies<Types, Block> {
  using copies = few_rows_copies<Types, Block>;
  using copies::arrivals, copies::is_alone, copies::issuers, copies::leaf_keys, copies::stages;
  using typename copies::leaf_source, typename copies::params, typename copies::shared_storage;

  const Block& block;
  const params& p;
  shared_storage& s;
  const int warp;  // the rank among the producers
  format_copies<Types, Block> format{};

  /// Initializes the mbarriers. One warp calls it before a barrier of the block.
  GIWA_DEVICE static void prepare(const Block& block, const params& p, shared_storage& s) {
    const int i = block.lane();
    if (i < Types::parts * stages) {
      s.k.full[i / Types::parts][i % Types::parts].initialize(arrivals(p));
      s.k.empty[i / Types::parts][i % Types::parts].initialize(4);
    }
    if (i < work_tile_queue::depth)
      s.queue.initialize(i, Types::max_threads / 32 - (is_alone(p) ? Types::producers - 1 : 0));
    arch::mbarriers_initialized();
    if (i == 0 && p.copies == key_copies::boxes) arch::prefetch_tensor_map(p.k);
  }

  /// Writes the work tiles of a split to the queue, and loads their keys.
  GIWA_DEVICE void run(int column) {
    split_walk<typename Types::call_params> walk(p.splits.call, p.splits.shape, column, p.splits.leaf_keys,
                                                 p.splits.tile_rows);
    const auto next_work = [&] { return walk.next() ? p.splits.placed(walk.work()) : few_rows_work_tile{}; };
    if (warp == 0) {
      walk.enter(p.splits.shape, s.search.found);
      const few_rows_work_tile first = next_work();
      if (block.lane() == 0) s.queue.work[0] = first;
    }
    arch::barrier_sync(Types::named_barrier::ready, Types::max_threads);
    if (is_alone(p) && warp > 0) return;
    uint32 turn = 0;
    for (work_tile_reader<Block> reader{block, s.queue}; reader.has_work(); reader.next()) {
      load_tiles(reader.work(), turn);
      if (warp > 0) continue;
      const few_rows_work_tile next = next_work();
      if (block.lane() == 0) s.queue.write(reader.number + 1, next);
    }
  }

 private:
  GIWA_DEVICE void load_tiles(const few_rows_work_tile& work, uint32& turn) {
    const packed_rows rows = rows_of(p.splits.call, work, p.splits.group, Types::rows);
    if constexpr (Types::has_boxes) {
      if (p.copies == key_copies::boxes && p.box_rows == Types::leaf_keys)
        return load_tiles_of_one_box(work, rows, turn);
      for (int leaf = work.begin; leaf < work.end; ++leaf)
        for (latent_wide_walk<Types, Block> tiles(block, p, rows, leaf); tiles.exists(); tiles.next())
          load_tile(look_up(work, tiles.tile), true, turn++);
    } else {
      load_tiles_ahead(work, rows, turn);
    }
  }
  /// The lanes look up 32 tiles at once.
  GIWA_DEVICE void load_tiles_of_one_box(const few_rows_work_tile& work, const packed_rows& rows, uint32& turn) const {
    int first = -32;
    cache_row row_of_lane{};
    for (int leaf = work.begin; leaf < work.end; ++leaf)
      for (latent_wide_walk<Types, Block> tiles(block, p, rows, leaf); tiles.exists(); tiles.next(), ++turn) {
        if (tiles.tile - first >= 32) {
          first = tiles.tile;
          const int key = (first + block.lane()) * Types::leaf_keys;
          if (key < work.sequence.keys) row_of_lane = p.splits.call.row_of(work.sequence, key);
        }
        const int of_group = tiles.tile - first, row = block.shuffle(row_of_lane.row, of_group),
                  element = block.shuffle(row_of_lane.element, of_group);
        load_boxes({element, row}, work.head, 1, Types::leaf_keys, turn);
      }
  }
  /// Looks tiles up one tile ahead: with cp.async, a load from the page table returns only after the copies that the warp started before
  /// it.
  GIWA_DEVICE void load_tiles_ahead(const few_rows_work_tile& work, const packed_rows& rows, uint32& turn) {
    int leaf = work.begin;
    latent_wide_walk<Types, Block> tiles(block, p, rows, leaf);
    const auto next_source = [&] {
      while (!tiles.exists() && ++leaf < work.end) tiles.enter(leaf);
      return tiles.exists() ? look_up(work, tiles.tile) : leaf_source{};
    };
    leaf_source source = next_source();
    for (bool starts = tiles.exists(); starts || (Types::has_format && format.pending >= 0);) {
      leaf_source next{};
      if (starts) tiles.next(), next = next_source();
      load_tile(source, starts, turn);
      turn += starts, source = next, starts = tiles.exists();
    }
  }
  /// Where the keys of a tile lie. Page numbers are looked up before the stage is free.
  GIWA_DEVICE leaf_source look_up(const few_rows_work_tile& work, int tile) const {
    leaf_source source =
        copies::source_of(block, warp, p, work, tile, Types::has_boxes && p.copies == key_copies::boxes);
    copies::read_pages(p, source), copies::check_pages(p, source);
    return source;
  }
  /// `starts`: without it rows of a format that were copied are completed, because the queue may wait for the warps that read tiles.
  GIWA_DEVICE void load_tile(leaf_source source, [[maybe_unused]] bool starts, uint32 turn) {
    const int stage = static_cast<int>(turn % stages);
    const uint32 free = (turn / stages & 1) ^ 1;
    if constexpr (Types::has_format) {
      if (starts) copies::find_rows(p, source);
      const auto test = [&] {
        bool all = true;
        GIWA_UNROLL
        for (auto& empty : s.k.empty[stage]) all = all && empty.is_over_now(free);
        return all;
      };
      const auto wait = [&] { wait_for_all(stage, free); };
      format.load(block, warp, p.splits.call.views.cache.k, source, s.k, starts, stage, test, wait, [&](int of_stage) {
        GIWA_UNROLL
        for (int part = 0; part < Types::parts; ++part) s.k.full[of_stage][part].arrive();
      });
    } else {
      if constexpr (Types::has_boxes)
        if (p.copies == key_copies::boxes)
          return load_boxes(source.key[0], source.head, source.boxes, p.box_rows, turn);
      if constexpr (Types::call_params::selects)
        if (p.copies == key_copies::chunks) return load_rows_of_list(source, stage, free);
      load_whole(source, stage, free);
    }
  }
  /// All producer warps copy 16 rows each, part by part: their addresses are worked out before the stage is free.
  GIWA_DEVICE void load_rows_of_list(leaf_source source, int stage, uint32 free) const {
    const auto& view = p.splits.call.views.cache.k;
    copies::find_rows(p, source);
    const cache_row& key = source.key[0];
    const list_rows<Types, Block> rows(block, warp,
                                       key.element < 0 ? nullptr : &view(key.element, key.row, source.head, 0), 0,
                                       view.data(), s.k.tile[stage]);
    GIWA_UNROLL
    for (int part = 0; part < Types::parts; ++part) {
      s.k.empty[stage][part].wait(free);
      rows.start(Types::slab_of(part), Types::slab_of(part) + Types::slabs_of(part), arch::l2_policy::normal);
      s.k.full[stage][part].arrive_after_copies();
    }
  }
  GIWA_DEVICE void wait_for_all(int stage, uint32 free) const {
    GIWA_UNROLL
    for (auto& empty : s.k.empty[stage]) empty.wait(free);
  }
  /// Lanes of the issuing warps start the boxes of a tile, which have box_rows rows each; `boxes`: of this warp.
  GIWA_DEVICE void load_boxes(const cache_row& of_lane, int head, int boxes, int box_rows, uint32 turn) const {
    using box = tensor_box<typename Types::k_tile>;
    using element = typename Types::element;
    static_assert(box::columns == 64);
    const int stage = static_cast<int>(turn % stages);
    const uint32 free = (turn / stages & 1) ^ 1;
    const int first_box = box_rows == Types::leaf_keys ? 0 : (block.lane() << p.issuers_log2) + warp;
    element* const to = s.k.tile[stage].data() + first_box * box_rows * box::columns;
    GIWA_UNROLL
    for (int part = 0; part < Types::parts; ++part) {
      const int begin = Types::slab_of(part), end = begin + Types::slabs_of(part);
      arch::mbarrier& full = s.k.full[stage][part];
      s.k.empty[stage][part].wait(free);
      if (block.lane() == 0)
        full.arrive_and_expect(boxes * box_rows * (end - begin) * box::columns * static_cast<int>(sizeof(element)));
      block.sync_warp();
      if (block.lane() >= boxes) continue;
      GIWA_UNROLL
      for (int i = begin; i < end; ++i) {
        const int origin[4] = {i * box::columns, of_lane.row, head, of_lane.element};
        arch::load_box(to + i * box::elements, p.k, origin, full, arch::l2_policy::evict_first);
      }
    }
  }
  /// All producer warps copy a share of the keys.
  GIWA_DEVICE void load_whole(leaf_source source, int stage, uint32 free) const {
    const auto& view = p.splits.call.views.cache.k;
    copies::find_rows(p, source);
    wait_for_all(stage, free);
    const bool chunks = copies::copy_keys(block, warp, p, view, source, s.k.tile[stage]);
    GIWA_UNROLL
    for (int part = 0; part < Types::parts; ++part)
      if (chunks)
        s.k.full[stage][part].arrive_after_copies();
      else
        s.k.full[stage][part].arrive();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
