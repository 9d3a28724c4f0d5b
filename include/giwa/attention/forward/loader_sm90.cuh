// SPDX-License-Identifier: MIT
// The loader of the Hopper kernel: one thread that loads Q, K and V by TMA and classifies each tile by the mask.
#ifndef GIWA_ATTENTION_FORWARD_LOADER_SM90_CUH
#define GIWA_ATTENTION_FORWARD_LOADER_SM90_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/forward/score_steps.cuh>
#include <giwa/attention/forward/types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The source of the K and V tiles of a work tile: consecutive rows of one tensor. A cache is another key source with the
/// same members (cached/many_rows_loader.cuh).
template <class Types>
struct sm90_contiguous_keys {
  int sequence, kv_head, first_row;

  GIWA_DEVICE sm90_contiguous_keys(const typename Types::params&, typename Types::shared_storage&,
                                   const typename Types::work_tile& work)
      : sequence(work.head.get().key_sequence),
        kv_head(work.head.get().kv_head),
        first_row(work.head.get().first_key_row) {}

  /// Called before the loader waits for a stage in which to load tile n of K, and tile `next` after it. The tile of V
  /// follows one tile later, and may need to be scrubbed.
  GIWA_DEVICE void look_up(int, int, bool) const {}

  /// Starts the copy of tile n with the tensor map `map`; `rank` is the block's rank in its cluster.
  template <class Copies, class Tile>
  GIWA_DEVICE void load(const tensor_map& map, int n, Tile& to, const Copies& copies, int rank) const {
    copies.multicast(map, giwa::index<4>{sequence, kv_head, first_row + n * Types::block_n, 0}, to, rank);
  }
};

/// Loads, for each work tile, K of the first tile, then Q, then K of each tile before V of the previous one: K is
/// needed before the buffer of Q is free, and V one product later than K.
template <class Types, class KeySource = sm90_contiguous_keys<Types>>
struct sm90_loader {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using work_tile = typename Types::work_tile;
  using k_note = typename Types::k_note;
  using v_note = typename Types::v_note;
  using consumer_note = typename Types::consumer_note;
  static constexpr int consumers = Types::consumers, queue_depth = Types::queue_depth;
  // The loader notifies the tile scheduler this many K tiles before the end of a work tile. The scheduler takes about
  // 2000 cycles.
  static constexpr int tiles_ahead = 4;
  // A kernel whose scheduler runs ahead by itself has no such barrier.
  static constexpr bool notifies = requires(shared_storage& s) { s.near_end; };
  // The list of K tiles is copied to registers. Through a reference, ptxas moves each field from shared memory to uniform
  // registers at each use: 83 instructions more, 0.8 % slower (128, causal, 512 tokens; H200, 2026-11-22). Three
  // consumers leave the loader too few registers for a copy.
  using tiles_of_keys = typename Types::tiles_of_keys;
  using tile_list =
      stdlib::conditional_t<(Types::policy::producer_registers >= 40), const tiles_of_keys, const tiles_of_keys&>;

  template <class Block>
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    arch::wait_for_previous_kernel();
    auto k = s.k.producer(block);
    auto v = s.v.producer(block);
    const int rank = Types::multicasts ? arch::cluster_rank() : 0;
    for (uint32 turn = 0;; ++turn) {
      s.work_full[turn % queue_depth].wait(turn / queue_depth & 1);
      const work_tile& work = s.work[turn % queue_depth];
      if (work.end) {
        for (int c = 0; c < consumers; ++c) {
          s.q_empty[c].wait((turn & 1) ^ 1);
          s.q_full[c].arrive();
        }
        v.put([&](auto&, const auto& copies) { s.v_notes[copies.number].end = true; });
        return;
      }
      load(p, s, work, turn, k, v, rank);
      s.work_empty[turn % queue_depth].arrive();
    }
  }

 private:
  /// Loads all tiles of a work tile. All notes are computed before the wait for a stage, so that the copy starts right
  /// after it.
  template <class KStages, class V>
  GIWA_DEVICE static void load(const params& p, shared_storage& s, const work_tile& work, uint32 turn, KStages& k, V& v,
                               int rank) {
    tile_list list = work.keys.get();
    const int count = work.end_tile;
    KeySource source(p, s, work);
    const auto load_v = [&](const v_note& note, int n) {
      v.put([&](auto& to, const auto& copies) {
        s.v_notes[copies.number] = note;
        source.load(p.v, n, to, copies, rank);
      });
    };
    int before = -1;  // the tile whose K is loaded and whose V is not
    v_note note_before{};
    int ahead = work.first_tile;
    const auto look_ahead = [&] {
      if constexpr (notifies) {
        if (ahead > count) return;
        if (ahead < count) {
          ahead = list.next(ahead + 1);
          if (ahead > count) ahead = count;  // the next needed tile is in a later chunk
        } else {
          s.near_end.arrive(), ahead = count + 1;
        }
      }
    };
    for (int i = 0; i < tiles_ahead; ++i) look_ahead();
    for (int n = work.first_tile; n < count;) {
      look_ahead();
      const int next = list.next(n + 1);
      const bool last = next >= count;
      [[maybe_unused]] const k_note note = note_of(p, work, n);
      const v_note note_v{Types::needs_scrub(p, list, n), false, 0};
      const uint32 of_all = (last ? consumer_note::last_of_work : 0) | (note_v.needs_scrub ? consumer_note::scrubs : 0);
      consumer_note notes[consumers];
      for (int c = 0; c < consumers; ++c) notes[c] = note_for_consumer(work, list, n, next, last, c, of_all);
      source.look_up(n, next, note_v.needs_scrub);
      k.put([&](auto& to, const auto& copies) {
        if constexpr (Types::is_split) s.k_notes[copies.number] = note;
        for (int c = 0; c < consumers; ++c) s.consumer_notes[copies.number][c] = notes[c];
        source.load(p.k, n, to, copies, rank);
      });
      if (before < 0)
        load_q(p, s, work, turn);
      else
        load_v(note_before, before);
      before = n, n = next, note_before = note_v;
    }
    if (before < 0)
      load_q(p, s, work, turn);
    else
      load_v(note_before, before);
    if constexpr (notifies)
      if (ahead <= count) s.near_end.arrive();  // if a mask gave different answers the second time
  }

  GIWA_DEVICE static k_note note_of(const params& p, const work_tile& work, int n) {
    k_note note{0, 0};
    if constexpr (Types::is_split) {
      const auto& h = work.head.get();
      using exponent = typename Types::exponent;
      note.exponent_k = static_cast<exponent>(p.split.k.exponent(h.kv_head, h.first_key_row, h.batch, n));
      note.exponent_v = static_cast<exponent>(p.split.v.exponent(h.kv_head, h.first_key_row, h.batch, n));
    }
    return note;
  }

  /// Returns the note on tile n for a consumer, with the flags `of_all` of all consumers. `next` is the tile after n; if n is
  /// the last of the work tile, it is not asked about.
  GIWA_DEVICE static consumer_note note_for_consumer(const work_tile& work, const tiles_of_keys& list, int n, int next,
                                                     bool last, int consumer, uint32 of_all) {
    const auto [first_query, queries] = Types::queries_of(work, consumer);
    const tile_keep keep = list.keep(n, first_query, queries);
    // A score modifier is never called for queries past the end.
    const bool asks =
        score_steps<typename Types::mask, typename Types::score>::modified && Types::lacks_rows(work, consumer);
    const bool ends = last || !list.needs_from(next, first_query, queries);
    return {n * Types::block_n, static_cast<uint32>(asks && keep == tile_keep::all ? tile_keep::some : keep) | of_all |
                                    (ends ? consumer_note::last_of_consumer : 0)};
  }

  GIWA_DEVICE static void load_q(const params& p, shared_storage& s, const work_tile& work, uint32 turn) {
    for (int c = 0; c < consumers; ++c) {
      arch::mbarrier& full = s.q_full[c];
      s.q_empty[c].wait((turn & 1) ^ 1);
      if (!work.has_keys())
        full.arrive();
      else
        Types::load_queries(p, work, c, s.rows[c].q, full);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
