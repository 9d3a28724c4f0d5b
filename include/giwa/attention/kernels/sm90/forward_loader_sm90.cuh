// SPDX-License-Identifier: MIT
// The loader of the Hopper kernel: a warp that loads K, V and, but for fp32, Q by TMA and classifies each tile by the mask.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_LOADER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_LOADER_SM90_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/elect.cuh>
#include <giwa/attention/kernels/sm90/forward_keys_sm90.cuh>
#include <giwa/attention/score/score_steps.cuh>
#include <giwa/attention/work/visible_groups.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// What a warp asks the mask about a tile of keys: one question in each lane, and one call of classify() answers all.
template <class Types>
struct sm90_tile_questions {
  using tiles_of_keys = typename Types::tiles_of_keys;
  static constexpr int consumers = Types::consumers;
  // The lanes. What each consumer sees of the tile, and of the tiles after it; what all queries see of the tile, of the next
  // one, of those from `tiles_ahead` on, and of the next 6, 7, 8, ... in the lanes that are left.
  static constexpr int later = consumers, whole = 2 * consumers, next = whole + 1, from_ahead = whole + 2,
                       runs = whole + 3;
  static constexpr bool unmasked = mask_traits<typename Types::mask>::keeps_all;

  // This lane's: the first tile, counted from the one that is asked about, how many, and the rows.
  int tile = 0, run = 1;
  int first_row, rows = max_int;

  struct answers {
    tile_keep own;        // of this lane
    uint32 some, needed;  // of all: a bit for each
    GIWA_DEVICE bool needs(int question) const { return (needed >> question & 1) != 0; }
    /// What all queries see of the tile.
    GIWA_DEVICE tile_keep of_whole() const {
      return (some >> whole & 1) != 0 ? tile_keep::some : needs(whole) ? tile_keep::all : tile_keep::none;
    }
    /// Whether a consumer needs a tile after this one, which is not the last.
    GIWA_DEVICE bool needs_later(int consumer) const { return !tiles_of_keys::any_range || needs(later + consumer); }
    /// Whether no query needs a tile from `tiles_ahead` on.
    GIWA_DEVICE bool needs_none_from_ahead() const { return tiles_of_keys::any_range && !needs(from_ahead); }
    /// How many tiles after this one have the same answers: they and those ahead of them are fully kept.
    GIWA_DEVICE int repeated() const { return tiles_of_keys::any_range ? __popc((needed & ~some) >> runs) : 0; }
  };

  template <class Work>
  GIWA_DEVICE sm90_tile_questions(const Work& work, const tiles_of_keys& list, int lane, int tiles_ahead)
      : first_row(list.first_row()) {
    if (lane < whole) {
      const auto of_consumer = Types::queries_of(work, lane < later ? lane : lane - later);
      first_row = of_consumer.first, rows = of_consumer.count;
    }
    if constexpr (unmasked) return;
    if ((lane >= later && lane < whole) || lane == next) tile = 1;
    if (lane == from_ahead) tile = tiles_ahead;
    if constexpr (tiles_of_keys::any_range) {
      if ((lane >= later && lane < whole) || lane == from_ahead) run = max_int;
      if (lane >= runs) run = lane - runs + tiles_ahead + 2;
    }
  }
  template <class Block>
  GIWA_DEVICE answers ask(const Block& block, const tiles_of_keys& list, int n) const {
    // Without a mask only queries past the end see nothing.
    if constexpr (unmasked) {
      const bool is_query = first_row <= list.last_row();
      return {is_query ? tile_keep::all : tile_keep::none, 0, block.ballot(is_query)};
    }
    const tile_keep k = list.visible_by_mask(n + tile, run, first_row, rows);
    const uint32 some = block.ballot(k == tile_keep::some);
    return {k, some, some | block.ballot(k == tile_keep::all)};
  }

 private:
  static constexpr int max_int = 0x7fffffff;
};

/// Loads, for each work tile, K of the first tile, then Q, then K of each tile before V of the previous one: K is
/// needed before the buffer of Q is free, and V one product later than K. A warp classifies the tiles, and one of its lanes
/// writes the notes and starts the copies.
template <class Types, class KeySource = sm90_contiguous_keys<Types>>
struct sm90_loader {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using work_tile = typename Types::work_tile;
  using k_note = typename Types::k_note;
  using v_note = typename Types::v_note;
  using consumer_note = typename Types::consumer_note;
  using questions = sm90_tile_questions<Types>;
  static constexpr int consumers = Types::consumers, queue_depth = Types::queue_depth;
  // The loader notifies the tile scheduler when nothing is needed from so many K tiles later on. It knows that only if the mask
  // classifies ranges; otherwise it does so near the last tile. The scheduler takes about 2000 cycles.
  static constexpr int tiles_ahead = 4;
  // A kernel whose scheduler runs ahead by itself has no such barrier.
  static constexpr bool notifies = requires(shared_storage& s) { s.near_end; };
  static constexpr bool finds_first = mask_traits<typename Types::mask>::has_blocks && notifies;
  // The list of K tiles is copied to registers. Through a reference, ptxas moves each field from shared memory to uniform
  // registers at each use: 83 instructions more, 0.8 % slower (128, causal, 512 tokens; H200, 2026-11-22). Three
  // consumers leave the loader too few registers for a copy.
  using tiles_of_keys = typename Types::tiles_of_keys;
  using tile_list =
      stdlib::conditional_t<(Types::policy::producer_registers >= 40), const tiles_of_keys, const tiles_of_keys&>;

  /// A warp.
  template <class Block>
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    arch::wait_for_previous_kernel();
    auto k = s.k.producer(block);
    auto v = Types::loaded_v(s).producer(block);
    const int rank = Types::multicasts ? arch::cluster_rank() : 0;
    for (uint32 turn = 0;; ++turn) {
      s.work_full[turn % queue_depth].wait(turn / queue_depth & 1);
      work_tile& work = s.work[turn % queue_depth];
      if (work.end) {
        if (!arch::elect_one()) return;
        for (int c = 0; c < consumers; ++c) {
          s.q_empty[c].wait((turn & 1) ^ 1);
          s.q_full[c].arrive();
        }
        v.put([&](auto&, const auto& copier) { s.v_notes[copier.number].end = true; });
        return;
      }
      if constexpr (finds_first)
        load_groups(block, p, s, work, turn, k, v);
      else
        load(block, p, s, work, turn, k, v, rank);
      block.sync_warp();
      if (arch::elect_one()) s.work_empty[turn % queue_depth].arrive();
    }
  }

 private:
  /// Loads all tiles of a work tile. All notes are computed before the wait for a stage, so that the copy starts right
  /// after it.
  template <class Block, class KStages, class V>
  GIWA_DEVICE static void load(const Block& block, const params& p, shared_storage& s, const work_tile& work,
                               uint32 turn, KStages& k, V& v, int rank) {
    tile_list list = work.keys.get();
    const int count = work.end_tile, consumer = block.lane() < consumers ? block.lane() : consumers - 1;
    const questions of_tile(work, list, block.lane(), tiles_ahead);
    KeySource source(p, s, work);
    const auto load_v = [&](const v_note& note, int n) {
      v.put([&](auto& to, const auto& copies) {
        s.v_notes[copies.number] = note;
        load_values(source, p, n, to, copies, rank);
      });
    };
    int before = -1;  // the tile whose K is loaded and whose V is not
    v_note note_before{}, note_v{};
    bool notified = !notifies;
    typename questions::answers seen{};
    uint32 flags[consumers];  // of the consumers' notes
    int asks_again = work.first_tile;
    for (int n = work.first_tile; n < count;) {
      int next = n + 1;
      if (n >= asks_again) {
        seen = of_tile.ask(block, list, n);
        // By a shuffle, so that lanes agree whatever the mask answers.
        if (next < count && !seen.needs(questions::next)) next = block.shuffle(list.next(n + 2), 0);
        const bool last = next >= count;
        note_v = {Types::needs_scrub(p, list, n, seen.of_whole()), false, 0};
        const uint32 own = flags_for_consumer(work, consumer, list.with_end(seen.own, n)) |
                           (last || !seen.needs_later(consumer) ? consumer_note::last_of_consumer : 0) |
                           (last ? consumer_note::last_of_work : 0) | (note_v.needs_scrub ? consumer_note::scrubs : 0);
        for (int c = 0; c < consumers; ++c) flags[c] = block.shuffle(own, c);
        const int same = n + 1 + seen.repeated();
        asks_again = same < count - 1 ? same : count - 1;
      }
      if (arch::elect_one()) {
        if constexpr (notifies)
          if (!notified && (n + tiles_ahead >= count || seen.needs_none_from_ahead()))
            s.near_end.arrive(), notified = true;
        source.look_up(n, next, note_v.needs_scrub);
        [[maybe_unused]] const k_note note = note_of(p, work, n);
        k.put([&](auto& to, const auto& copies) {
          if constexpr (Types::is_split) s.k_notes[copies.number] = note;
          for (int c = 0; c < consumers; ++c) s.consumer_notes[copies.number][c] = {n * Types::block_n, flags[c]};
          source.load(p.k, n, to, copies, rank);
        });
        if (before < 0)
          load_q(p, s, work, turn);
        else
          load_v(note_before, before);
      }
      block.sync_warp();
      before = n, n = next, note_before = note_v;
    }
    if (!arch::elect_one()) return;
    if (before < 0)
      load_q(p, s, work, turn);
    else
      load_v(note_before, before);
    if constexpr (notifies)
      if (!notified) s.near_end.arrive();  // no tile, or the last ones of a chunk are not needed
  }

  /// The same for a mask of blocks. Sets the first tile of the work tile, which consumers read after they got their queries.
  template <class Block, class KStages, class V>
  GIWA_DEVICE static void load_groups(const Block& block, const params& p, shared_storage& s, work_tile& work,
                                      uint32 turn, KStages& k, V& v) {
    const tiles_of_keys& list = work.keys.get();
    KeySource source(p, s, work);
    visible_groups<tiles_of_keys, consumers> tiles(block, list, work.first_tile, work.end_tile,
                                                   s.groups.of_lane[block.lane()].get());
    int before = -1, n = -1;  // the tile whose V is not yet loaded, and the one after it
    bool scrubs_before = false, scrubs = false, notified = false;
    uint32 flags[consumers];  // of the consumers' notes
    const auto load_q_or_v = [&] {
      if (before < 0) return load_q(p, s, work, turn);
      v.put([&](auto& to, const auto& copies) {
        s.v_notes[copies.number] = {scrubs_before, false, 0};
        load_values(source, p, before, to, copies, 0);
      });
    };
    for (;;) {
      const int next = tiles.next(block);  // one copy of this code: it is as large as the rest of the loader
      const bool last = next < 0;
      if (n < 0 && arch::elect_one()) work.first_tile = last ? work.end_tile : next;
      if (n >= 0) {
        for (int c = 0; c < consumers; ++c)
          flags[c] |= (last || !tiles.needs_later(c) ? consumer_note::last_of_consumer : 0) |
                      (last ? consumer_note::last_of_work : 0) | (scrubs ? consumer_note::scrubs : 0);
        if (arch::elect_one()) {
          if (!notified && (last || tiles.has_fewer_than(tiles_ahead - 1))) s.near_end.arrive(), notified = true;
          [[maybe_unused]] const k_note note = note_of(p, work, n);
          k.put([&](auto& to, const auto& copies) {
            if constexpr (Types::is_split) s.k_notes[copies.number] = note;
            for (int c = 0; c < consumers; ++c) s.consumer_notes[copies.number][c] = {n * Types::block_n, flags[c]};
            source.load(p.k, n, to, copies, 0);
          });
          load_q_or_v();
        }
        block.sync_warp();
        before = n, scrubs_before = scrubs;
      }
      if (last) break;
      n = next, scrubs = Types::needs_scrub(p, list, n, tiles.keep());
      for (int c = 0; c < consumers; ++c) flags[c] = flags_for_consumer(work, c, list.with_end(tiles.keep(c), n));
    }
    if (!arch::elect_one()) return;
    load_q_or_v();
    if (before < 0) s.near_end.arrive();
  }

  template <class Tile, class Copies>
  GIWA_DEVICE static void load_values(const KeySource& source, const params& p, int n, Tile& to, const Copies& copies,
                                      int rank) {
    if constexpr (requires { source.load_columns(p.v, n, to, copies); })
      source.load_columns(p.v, n, to, copies);
    else
      source.load(p.v, n, to, copies, rank);
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

  /// Returns the flags of a consumer that sees `keep` of a tile.
  GIWA_DEVICE static uint32 flags_for_consumer(const work_tile& work, int consumer, tile_keep keep) {
    // A whole tile is not checked for queries past the end, which a score modifier must not see.
    const bool asks =
        score_steps<typename Types::mask, typename Types::score>::modified && Types::lacks_rows(work, consumer);
    return static_cast<uint32>(asks && keep == tile_keep::all ? tile_keep::some : keep);
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
