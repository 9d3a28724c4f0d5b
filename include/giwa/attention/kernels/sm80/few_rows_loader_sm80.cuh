// SPDX-License-Identifier: MIT
// The producer warps of the kernel for few rows: they fill the rings of keys and values.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_LOADER_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_LOADER_SM80_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/named_barrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/kernels/sm80/few_rows_copies_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A producer warp.
template <class Types, class Block>
struct few_rows_loader : few_rows_copies<Types, Block> {
  using copies = few_rows_copies<Types, Block>;
  using copies::arrivals, copies::copies_scales, copies::is_alone, copies::issuers, copies::lane_keys,
      copies::leaf_keys, copies::load_boxes, copies::load_rows, copies::load_scales, copies::stages, copies::warp_keys;
  using typename copies::leaf_places, typename copies::params, typename copies::shared_storage;
  using walk_type = run_walk<typename Types::call_params>;

  const Block& block;
  const params& p;
  shared_storage& s;
  const int warp;             // the rank among the producers
  item_reader<Block> reader;  // of the item whose leaves are looked up
  int leaf = 0;

  GIWA_DEVICE few_rows_loader(const Block& b, const params& parameters, shared_storage& storage, int w)
      : block(b), p(parameters), s(storage), warp(w), reader{b, storage.items} {}

  /// Initializes the mbarriers. One warp calls it before a barrier of the block.
  GIWA_DEVICE static void prepare(const Block& block, const params& p, shared_storage& s) {
    const int i = block.lane();
    if (i < stages) {
      const int of_scales = p.copies == key_copies::boxes && copies_scales(p) ? 32 * Types::producers : 0;
      s.k.full[i].initialize(arrivals(p) + of_scales), s.k.empty[i].initialize(Types::score_warps);
      s.v.full[i].initialize(arrivals(p)), s.v.empty[i].initialize(Types::output_warps);
    }
    if (i < run_items::slots) s.items.initialize(i, Types::max_threads / 32 - (is_alone(p) ? Types::producers - 1 : 0));
    arch::mbarriers_initialized();
    if (i == 0 && p.copies == key_copies::boxes) arch::prefetch_tensor_map(p.k), arch::prefetch_tensor_map(p.v);
  }

  /// Loads all leaves of a run, which find_run() has found or this warp finds early.
  GIWA_DEVICE void run(int run, int column) {
    walk_type walk(p.runs.call, p.runs.shape, column, leaf_keys, Types::rows);
    leaf_places at{};
    bool masked = false, is_final = !p.runs.early;
    for (bool rehearses = p.runs.early && warp > 0;;) {
      if (warp == 0) write_first_item(walk, run);
      // While that warp finds the run, the others look up places of the second item, which is not written yet, and drop
      // them. So the instructions and parameters, which come from memory, are in the caches.
      reader.number = rehearses ? 1 : 0;
      if (!rehearses) sync();
      at = {};  // nothing of a rehearsal may be read if the run has no item
      if (rehearses || reader.has_item()) {
        leaf = reader.item().begin;
        at = places_of(leaf, p.copies == key_copies::boxes);
        masked = p.runs.early ? leaf * leaf_keys >= reader.item().sequence.keys : is_masked();
        arch::compute_here(at.entry[0]), arch::compute_here(at.own[0].row), arch::compute_here(at.boxes);
      }
      if (rehearses) {
        rehearses = false;
        continue;
      }
      if (is_final) break;
      arch::wait_for_previous_kernel();
      arch::launch_dependents();
      if (has_same_lengths(block, p.runs.call, s.search)) break;
      sync();  // all producers have compared the lengths
      is_final = true;
    }
    read_pages(at);  // not before: the page table may end with the pages of these lengths
    arch::barrier_arrive(Types::named_barrier::ready, Types::max_threads);
    if ((is_alone(p) && warp > 0) || !reader.has_item()) return;
    load(walk, at, masked);
  }

 private:
  /// Writes the first item of a run, or one without leaves if the run has none.
  GIWA_DEVICE void write_first_item(walk_type& walk, int run) const {
    bool has_item;
    if (p.runs.early)
      has_item = walk.enter_early(find_run_early(block, p.runs.call, p.runs.shape, run, leaf_keys, s.search));
    else
      walk.enter(p.runs.shape, s.search.found), has_item = walk.next();
    if (block.lane() == 0) s.items.item[0] = has_item ? walk.item() : run_item{};
  }

  /// Loads the leaves of a walk, which is at its first item. `at`: where the first leaf lies, which may be masked. Places are
  /// looked up one leaf ahead: with cp.async, a load from the page table returns only after the copies that the warp started
  /// before it. But not where items follow of which every leaf is masked: they need space in the ring of items, which has it
  /// when the others are done with the item whose leaf is to be loaded.
  GIWA_DEVICE void load(walk_type& walk, leaf_places at, bool masked) {
    const bool boxes = p.copies == key_copies::boxes, scales = copies_scales(p);
    [[maybe_unused]] leaf_places of_scales{};
    if (scales) of_scales = look_up(false);
    bool loads = !masked;  // whether `at` is a leaf to be loaded
    for (int turn = 0;;) {
      const int stage = turn % stages;
      const uint32 free = (static_cast<uint32>(turn) / stages & 1) ^ 1;
      if (loads && boxes && (!Types::converts || warp < issuers(p))) {
        load_boxes(block, warp, p, p.k, at, s.k, stage, free);
        load_boxes(block, warp, p, p.v, at, s.v, stage, free);
      }
      const move to = next(walk);
      leaf_places next_at{};
      if (to == move::to_leaf) next_at = look_up(boxes);
      if constexpr (Types::converts) {
        leaf_places next_scales{};
        if (to == move::to_leaf && scales) next_scales = look_up(false);
        if (loads && scales) load_scales(block, warp, p, of_scales, s, stage, free);
        of_scales = next_scales;
      }
      if (loads && !boxes) {
        load_rows(block, warp, p, p.runs.call.views.cache.k, at, s.k, stage, free);
        load_rows(block, warp, p, p.runs.call.views.cache.v, at, s.v, stage, free);
      }
      if (to == move::to_end) return;
      turn += loads;
      loads = to == move::to_leaf;
      at = next_at;
    }
  }

  GIWA_DEVICE void sync() const { arch::barrier_sync(Types::named_barrier::producers, 32 * Types::producers); }

  enum class move { to_leaf, past_item, to_end };
  /// Moves to the next leaf of this item or the next one that is not masked, or past all leaves of both.
  GIWA_DEVICE move next(walk_type& walk) {
    for (bool is_next = false;; is_next = true) {
      for (++leaf; leaf < reader.item().end; ++leaf)
        if (!is_masked()) return move::to_leaf;
      if (is_next) break;
      if (warp == 0) {
        const bool has_item = walk.next();
        if (block.lane() == 0) s.items.write(reader.number + 1, has_item ? walk.item() : run_item{});
      }
      reader.next();
      if (!reader.has_item()) return move::to_end;
      leaf = reader.item().begin - 1;
    }
    --leaf;
    return move::past_item;
  }
  GIWA_DEVICE bool is_masked() const {
    return Types::keep_of(p.runs.call, rows_of(p.runs.call, reader.item(), p.runs.group, Types::rows), leaf) ==
           tile_keep::none;
  }

  GIWA_DEVICE leaf_places look_up(bool boxes) const {
    leaf_places at = places_of(leaf, boxes);
    read_pages(at);
    return at;
  }
  /// Where the keys of a leaf lie, but for the numbers of their pages.
  GIWA_DEVICE leaf_places places_of(int leaf_number, bool boxes) const {
    const auto& call = p.runs.call;
    const cached_sequence& sequence = reader.item().sequence;
    const int first_key = leaf_number * leaf_keys, left = sequence.keys - first_key;
    leaf_places at{reader.item().head, 0, {}, {}};
    if (boxes) {
      const int all = ceil_div(left < leaf_keys ? left : leaf_keys, p.box_rows);
      at.boxes = (all - warp + issuers(p) - 1) >> p.issuers_log2;
    }
    GIWA_UNROLL
    for (int i = 0; i < lane_keys; ++i) {
      // At most 32 boxes: box_rows is at least leaf_keys / 32.
      const int of_warp = block.lane() + 32 * i;
      const int own = boxes ? ((of_warp << p.issuers_log2) + warp) * p.box_rows : warp * warp_keys + of_warp;
      at.own[i] = {-1, 0};
      if (own >= left || own >= leaf_keys || (!boxes && of_warp >= warp_keys)) continue;
      at.own[i] = {sequence.batch, first_key + own};
      if (!call.views.is_paged()) continue;
      const int n = static_cast<int>(int64{first_key + own} / call.page_size);
      at.own[i].row -= n * static_cast<int>(call.page_size.divisor());
      at.entry[i] = call.views.cache.pages.indices + (sequence.first_entry + n);
    }
    return at;
  }
  GIWA_DEVICE void read_pages(leaf_places& at) const {
    GIWA_UNROLL
    for (int i = 0; i < lane_keys; ++i)
      if (at.entry[i] != nullptr) at.own[i].element = valid_page(*at.entry[i], p.runs.call.views.cache.k.extent(0));
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
