// SPDX-License-Identifier: MIT
// The producer warps of the kernel for few rows.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_LOADER_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_LOADER_SM80_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/named_barrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/kernels/sm80/few_rows_lists_sm80.cuh>
#include <giwa/attention/kernels/sm80/few_rows_scale_copies_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A producer warp.
template <class Types, class Block>
struct few_rows_loader : few_rows_scale_copies<Types, Block> {
  using copies = few_rows_scale_copies<Types, Block>;
  using copies::arrivals, copies::copies_scales, copies::is_alone, copies::issuers, copies::lane_keys,
      copies::leaf_keys, copies::load_boxes, copies::load_rows, copies::load_scales, copies::stages, copies::warp_keys;
  using typename copies::leaf_source, typename copies::neighbours, typename copies::params,
      typename copies::shared_storage;
  using walk_type = split_walk<typename Types::call_params>;

  const Block& block;
  const params& p;
  shared_storage& s;
  const int warp;                  // the rank among the producers
  work_tile_reader<Block> reader;  // of the work tile whose leaves are looked up
  int leaf = 0;
  [[no_unique_address]] typename Types::visible_leaves leaves{};

  GIWA_DEVICE few_rows_loader(const Block& b, const params& parameters, shared_storage& storage, int w)
      : block(b), p(parameters), s(storage), warp(w), reader{b, storage.queue} {}

  /// Initializes the mbarriers. One warp calls it before a barrier of the block.
  GIWA_DEVICE static void prepare(const Block& block, const params& p, shared_storage& s) {
    const int i = block.lane();
    if (i < stages) {
      const int of_scales = p.copies == key_copies::boxes && copies_scales(p) ? 32 * Types::producers : 0;
      s.k.full[i].initialize(arrivals(p) + of_scales);
      s.k.empty[i].initialize(Types::values_are_keys ? Types::output_warps : Types::score_warps);
      if constexpr (copies::copies_bytes) s.k.requested[i] = -1;
      if constexpr (!Types::values_are_keys)
        s.v.full[i].initialize(arrivals(p)), s.v.empty[i].initialize(Types::output_warps);
    }
    if (i < work_tile_queue::depth)
      s.queue.initialize(i, Types::max_threads / 32 - (is_alone(p) ? Types::producers - 1 : 0));
    arch::mbarriers_initialized();
    if (i == 0 && p.copies == key_copies::boxes) {
      arch::prefetch_tensor_map(p.k);
      if constexpr (!Types::values_are_keys) arch::prefetch_tensor_map(p.v);
    }
  }

  /// Loads all leaves of a split, which find_split() has found or this warp finds early.
  GIWA_DEVICE void run(int split, int column) {
    walk_type walk(p.splits.call, p.splits.shape, column, leaf_keys, Types::rows);
    leaf_source source{};
    bool masked = false, is_final = !p.splits.waits_late;
    for (bool rehearses = p.splits.early && warp > 0;;) {
      if (warp == 0) write_first_work(walk, split);
      // While that warp finds the split, the others look up a leaf of the second work tile, which is not written yet, and drop
      // them. So the instructions and parameters, which come from memory, are in the caches.
      reader.number = rehearses ? 1 : 0;
      if (!rehearses) sync();
      source = {};  // nothing of a rehearsal may be read if the split has no work tile
      if (rehearses || reader.has_work()) {
        leaf = reader.work().begin;
        source = source_of(leaf, p.copies == key_copies::boxes);
        masked = p.splits.early ? leaf * leaf_keys >= reader.work().sequence.keys : is_masked();
        arch::compute_here(source.entry[0]), arch::compute_here(source.key[0].row), arch::compute_here(source.boxes);
      }
      if (rehearses) {
        rehearses = false;
        continue;
      }
      if (is_final) break;
      arch::wait_for_previous_kernel();
      arch::launch_dependents();
      if (!p.splits.early || has_same_lengths<most>(block, p.splits.call, lengths())) break;
      sync();  // all producers have compared the lengths
      is_final = true;
    }
    read_pages(source);  // not before: the page table may end with the pages of these lengths
    arch::barrier_arrive(Types::named_barrier::ready, Types::max_threads);
    if ((is_alone(p) && warp > 0) || !reader.has_work()) return;
    if constexpr (copies_lists)
      if (p.copies == key_copies::chunks) return load_lists(walk);
    load(walk, source, masked);
  }

 private:
  static constexpr int most = Types::early_sequences;
  // Whole rows, which TMA does not gather.
  static constexpr bool copies_lists = copies::selects && Types::values_are_keys && !copies::copies_bytes;
  /// The lengths from which a split was found early: where P will be, which is not written before all producers have compared them.
  GIWA_DEVICE int* lengths() const {
    static_assert(sizeof s.p >= sizeof(int) * most);
    return reinterpret_cast<int*>(&s.p);
  }
  /// Writes the first work tile of a split, or one without leaves if the split has none.
  GIWA_DEVICE void write_first_work(walk_type& walk, int split) const {
    bool has_work;
    if (p.splits.early)
      has_work = walk.enter_early(
          find_split_early<most>(block, p.splits.call, p.splits.shape, split, leaf_keys, s.search, lengths()));
    else
      walk.enter(p.splits.shape, s.search.found), has_work = walk.next();
    if (block.lane() == 0) s.queue.work[0] = has_work ? walk.work() : few_rows_work_tile{};
  }

  /// Loads the leaves of a walk, which is at its first work tile. `source`: of its first leaf, which may be masked. Leaves are
  /// looked up one leaf ahead: with cp.async, a load from the page table returns only after the copies that the warp started
  /// before it. But not where work tiles follow of which every leaf is masked: they need space in the queue, which has it
  /// when the others are done with the work tile whose leaf is to be loaded.
  GIWA_DEVICE void load(walk_type& walk, leaf_source source, bool masked) {
    const bool boxes = !copies::copies_bytes && p.copies == key_copies::boxes, scales = copies_scales(p);
    if constexpr (Types::converts && Types::has_boxes)
      if (boxes && scales) return load_with_scales(walk, masked);
    [[maybe_unused]] leaf_source scales_source{};
    if (scales) scales_source = look_up(false);
    bool loads = !masked;  // whether `source` is of a leaf to be loaded
    for (int turn = 0;;) {
      const int stage = turn % stages;
      const uint32 free = (static_cast<uint32>(turn) / stages & 1) ^ 1;
      if constexpr (!copies::copies_bytes)
        if (loads && boxes && (!Types::converts || warp < issuers(p))) {
          load_boxes(block, warp, p, p.k, source, s.k, stage, free);
          if constexpr (!Types::values_are_keys) load_boxes(block, warp, p, p.v, source, s.v, stage, free);
        }
      const move to = next(walk);
      leaf_source next_source{};
      if (to == move::to_leaf) next_source = look_up(boxes);
      if constexpr (Types::converts) {
        leaf_source next_scales{};
        if (to == move::to_leaf && scales) next_scales = look_up(false);
        if (loads && scales) load_scales(block, warp, p, scales_source, s, static_cast<uint32>(turn), free);
        scales_source = next_scales;
      }
      if (loads && !boxes) {
        load_rows(block, warp, p, p.splits.call.views.cache.k, source, s.k, stage, free);
        if constexpr (copies::copies_bytes)
          if (warp == 0 && block.lane() == 0) static_cast<volatile int&>(s.k.requested[stage]) = turn;
        if constexpr (!Types::values_are_keys)
          load_rows(block, warp, p, p.splits.call.views.cache.v, source, s.v, stage, free);
      }
      if (to == move::to_end) return;
      turn += loads;
      loads = to == move::to_leaf;
      source = next_source;
    }
  }

  /// The same by TMA, with scales of keys or values, which all warps copy, and each starts the boxes that begin among its keys: one page
  /// number for both. A separate loop: in one loop of both cases this order costs one scale 7 %.
  GIWA_DEVICE void load_with_scales(walk_type& walk, bool masked) {
    neighbours keys = neighbours_of(leaf);
    copies::check_page(p, keys, copies::read_page(keys));
    const auto to_key = [&] { return warp * warp_keys + block.lane() * p.box_rows; };
    bool loads = !masked;
    for (int turn = 0;;) {
      const int stage = turn % stages;
      const uint32 free = (static_cast<uint32>(turn) / stages & 1) ^ 1;
      leaf_source source{};
      if (loads) {
        source = copies::boxes_of(block, warp, p, keys, reader.work().sequence.keys - leaf * leaf_keys);
        copies::start_boxes(block, p, p.k, source, to_key, s.k, stage, free);
      }
      const int expected = leaf + 1, number = reader.number;
      neighbours ahead = neighbours_of(expected);
      const int page = copies::read_page(ahead);
      if (loads) {
        copies::load_scales(block, warp, p, keys, s, static_cast<uint32>(turn), free);
        copies::start_boxes(block, p, p.v, source, to_key, s.v, stage, free);
      }
      const move to = next(walk);
      if (to == move::to_end) return;
      turn += loads;
      loads = to == move::to_leaf;
      if (!loads) continue;
      if (leaf == expected && reader.number == number) {
        keys = ahead, copies::check_page(p, keys, page);
        continue;
      }
      keys = neighbours_of(leaf);
      copies::check_page(p, keys, copies::read_page(keys));
    }
  }
  /// The same of lists, where only leaves without keys are masked. Several tiles are looked up at once: one after the other the
  /// instructions for that took as long as a tile's copies.
  GIWA_DEVICE void load_lists(walk_type& walk) {
    using numbers_type = list_numbers<Types, Block>;
    const auto& call = p.splits.call;
    const auto policy = p.keys_once ? arch::l2_policy::evict_first : arch::l2_policy::normal;
    for (uint32 turn = 0; reader.has_work(); reader.next()) {
      const few_rows_work_tile& work = reader.work();
      const int first = work.begin, tiles = ceil_div(work.sequence.keys, leaf_keys),
                end = work.end < tiles ? work.end : tiles;
      numbers_type numbers;
      numbers.read(block, warp, call, work.sequence, first);
#pragma unroll 1
      for (int group = first; group == first || group < end; group += numbers_type::tiles) {
        const typename Types::element* row[numbers_type::of_lane];
        numbers.find(call, work.sequence, work.head, row);
        if (group + numbers_type::tiles < end)
          numbers.read(block, warp, call, work.sequence, group + numbers_type::tiles);
#pragma unroll 1
        for (int tile = group; tile < group + numbers_type::tiles && tile < end; ++tile, ++turn) {
          const int of_group = tile - group, stage = static_cast<int>(turn % stages);
          const list_rows<Types, Block> rows(block, warp, row[0], of_group % numbers_type::tiles_at_once * warp_keys,
                                             call.views.cache.k.data(), s.k.tile[stage]);
          if (of_group % numbers_type::tiles_at_once == numbers_type::tiles_at_once - 1) row[0] = row[1];
          s.k.empty[stage].wait((turn / stages & 1) ^ 1);
          rows.start(0, Types::k_tile::columns / 64, policy);
          s.k.full[stage].arrive_after_copies();
        }
        if (warp == 0 && group == first) write_next_work(walk);
      }
    }
  }
  GIWA_DEVICE void write_next_work(walk_type& walk) const {
    const bool has_work = walk.next();
    if (block.lane() == 0) s.queue.write(reader.number + 1, has_work ? walk.work() : few_rows_work_tile{});
  }
  GIWA_DEVICE neighbours neighbours_of(int leaf_number) const {
    return copies::neighbours_of(block, warp, p, reader.work(), leaf_number);
  }

  GIWA_DEVICE void sync() const { arch::barrier_sync(Types::named_barrier::producers, 32 * Types::producers); }

  enum class move { to_leaf, past_tile, to_end };
  /// Moves to the next leaf of this work tile or the next one that is not masked, or past all leaves of both.
  GIWA_DEVICE move next(walk_type& walk) {
    for (bool is_next = false;; is_next = true) {
      for (++leaf; leaf < reader.work().end; ++leaf)
        if (!is_masked()) return move::to_leaf;
      if (is_next) break;
      if (warp == 0) write_next_work(walk);
      reader.next();
      leaves.reset();
      if (!reader.has_work()) return move::to_end;
      leaf = reader.work().begin - 1;
    }
    --leaf;
    return move::past_tile;
  }
  GIWA_DEVICE bool is_masked() {
    const packed_rows rows = rows_of(p.splits.call, reader.work(), p.splits.group, Types::rows);
    return leaves.of(block, p.splits.call, rows, leaf) == tile_keep::none;
  }

  GIWA_DEVICE leaf_source look_up(bool boxes) const {
    leaf_source source = source_of(leaf, boxes);
    read_pages(source);
    return source;
  }
  GIWA_DEVICE leaf_source source_of(int leaf_number, bool boxes) const {
    return copies::source_of(block, warp, p, reader.work(), leaf_number, boxes);
  }
  GIWA_DEVICE void read_pages(leaf_source& source) const { copies::read_pages(p, source); }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
