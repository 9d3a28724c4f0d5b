// SPDX-License-Identifier: MIT
// The loader of the Hopper kernels of attention_backward: a warp loads tiles and notes their masks.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_LOADER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_LOADER_SM90_CUH

#include <giwa/arch/elect.cuh>
#include <giwa/attention/kernels/sm90/backward_bias_sm90.cuh>
#include <giwa/attention/kernels/sm90/backward_plain_sm90.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/work/visible_groups.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Loads the visible tiles of each work item, and its fixed rows unless the scheduler does, and writes notes on them. For keys: the tiles of queries of every
/// sequence and head that reads them, or this work tile's share, in order. Runs as a whole warp.
template <class Types, class Block>
class sm90_backward_loader : sm90_plain_loader<Types, Block> {
  using base = sm90_plain_loader<Types, Block>;
  using base::base;
  using base::block, base::p, base::s, base::x, base::y, base::place, base::columns, base::rows_of_lane,
      base::by_groups, base::copies_first, base::has_fixed, base::fixed_turn;
  using typename base::action, typename base::head_type, typename base::params, typename base::shared_storage,
      typename base::terms_of_row, typename base::tile_note, typename base::tiles_list, typename base::work_item;

 public:
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    sm90_backward_loader me(block, p, s);
    for (uint32 turn = 0;; ++turn) {
      const int at = static_cast<int>(turn % Types::queue_depth);
      s.work_full[at].wait(turn / Types::queue_depth & 1);
      work_item& work = s.work[at];
      if (work.end) break;
      me.has_fixed = false;
      if (!work.idle) me.load_item(work);
      me.tell_tiles(false);
      if constexpr (Types::adds_dq)
        if (work.last && block.lane() == 0) s.last_loaded.arrive();
      me.put_end(action::end_of_item);
      block.sync_warp();
      if (block.lane() == 0) s.work_empty[at].arrive();
    }
    me.put_end(action::end);
    if constexpr (Types::reads_bias) me.bias.finish(block, p, s);
  }

 private:
  /// Whether the loader changes the head in an item, which only it reads where dq is added: no copy of the place, nor a loop over
  /// sequences, since one reads the keys, and a claimed tile has keys. 16 spilled bytes less: what the loader reads from local memory it
  /// awaits, because writers invalidate the L1 cache. 64, causal, 512 and 1024 tokens 1.02 times as fast, but full from 4096 tokens on
  /// 0.975, with the same code of the consumers (H200, 2026-11-30).
  static constexpr bool changes_head = Types::adds_dq && !mask_traits<typename Types::mask>::keeps_all;
  GIWA_DEVICE void load_item(work_item& work) {
    if constexpr (changes_head) {
      for (int head = work.first_head; head < work.end_head; ++head) {
        if (block.lane() == 0) work.head.get().head = head;
        block.sync_warp();
        load_tiles(work, work.head.get());
        block.sync_warp();  // all lanes have read the head
      }
    } else if constexpr (Types::rows_are_keys) {
      const int n = work.batch;
      for (int b = p.call.first_reader(n); b < p.call.end_reader(n); ++b) {
        if (!p.call.is_reader(b, n)) continue;
        for (int head = work.first_head; head < work.end_head; ++head) {
          if (block.lane() == 0) s.moving_head.put(place_of(work, b, head));
          block.sync_warp();
          if (work.first < s.moving_head.get().keys()) load_tiles(work, s.moving_head.get());
          block.sync_warp();  // all lanes have read the head
        }
      }
    } else {
      load_tiles(work, work.head.get());
    }
  }
  /// The place of a head that reads the item's keys. Where dq is added one sequence does, whose place the scheduler has found.
  GIWA_DEVICE head_type place_of(const work_item& work, int sequence, int head) const {
    if constexpr (!Types::adds_dq) return p.call.call.place_of(sequence, head);
    head_type h = work.head.get();
    h.head = head;
    return h;
  }
  /// A note without a tile.
  GIWA_DEVICE void put_end(action end) {
    s.x_empty[x.stage()].wait(x.phase() ^ 1);
    if (block.lane() == 0) {
      for (int c = 0; c < Types::groups; ++c) s.notes[x.stage()].of[c] = end;
      if constexpr (Types::adds_dq)
        if (end == action::end) {
          s.dq_places[place.stage()].part = Types::no_more_parts;
          s.place_full[place.stage()].arrive();
        }
      s.x_full[x.stage()].arrive();
    }
    block.sync_warp();
    x.advance();
  }

  GIWA_DEVICE void load_tiles(const work_item& work, const head_type& h) {
    const tiles_list list(p.call.call.mask, h, work.first, Types::block_m, columns);
    // Where dq is added, the last tile comes first: under a causal mask tiles of keys begin with the same queries then,
    // add to dq at the same pace, and find their queries in the L2 cache.
    constexpr bool descends = Types::adds_dq;
    int first = 0;
    if constexpr (Types::adds_dq)
      if (work.divided) first = list.count() * work.share / work.sharers;
    if constexpr (by_groups) {
      visible_groups<tiles_list, Types::groups, descends> tiles(list, first, end_of_part(work, list.count()));
      const auto find_before = [&](int n) {
        const key_tiles<typename Types::mask> keys(p.call.call.mask, h, n * columns, columns, Types::block_m);
        // In any order the part that is ready first is stored (sm90_dq_writer).
        if (Types::adds_dq && n >= 0 && !p.call.workspace.any_order)
          before_of_lane = visible_before(keys, work.first / Types::block_m);
      };
      for (int n; (n = tiles.next(block, find_before)) >= 0;) {
        tell_tiles(true);
        load_tile(work, h, list, n, tiles);
        load_fixed(work);
      }
    } else {
      const int last = descends ? list.previous(end_of_part(work, list.count())) : list.next(0);
      for (int n = last; first <= n && n < list.count(); n = descends ? list.previous(n) : list.next(n + 1)) {
        tell_tiles(true);
        load_tile(work, h, list, n, list);
        load_fixed(work);  // now, because the consumers of the item before may still use the fixed rows
        if constexpr (base::has_plain_tiles)
          if (n == last) n = this->load_plain_tiles(work, h, list, first, n);
      }
    }
  }
  /// The end of the tiles of queries that a work item has, of `count`.
  GIWA_DEVICE static int end_of_part(const work_item& work, int count) {
    if constexpr (Types::adds_dq)
      if (work.divided) return count * (work.share + 1) / work.sharers;
    return count;
  }
  /// What the mask keeps of tile n for a consumer. A score modifier is never called for rows past the end.
  template <class Tiles>
  GIWA_DEVICE tile_keep keep_for(const work_item& work, const head_type& h, const tiles_list& list, int n, int c,
                                 const Tiles& tiles) const {
    const int first = work.first + 64 * c;
    if constexpr (Types::policy::narrows)
      if (p.narrow && c > 0) return tile_keep::none;
    tile_keep keep;
    if constexpr (by_groups)
      keep = list.with_end(tiles.keep(c), n);
    else
      keep = list.keep(n, first, 64);
    const bool asks = score_steps<typename Types::mask, typename Types::score>::modified;
    const bool lacks_rows = first + 64 > (Types::rows_are_keys ? h.keys() : h.queries());
    // Nor may keys past the end, which have other rows or none in shared memory, add to dq.
    if ((asks || Types::adds_dq) && lacks_rows && keep == tile_keep::all) return tile_keep::some;
    return Types::rows_are_keys ? keep_of_reader(p.call, h, keep, first + 64) : keep;
  }

  /// Where the scheduler loads the fixed rows: says whether there are tiles, once for each item.
  GIWA_DEVICE void tell_tiles(bool has_tiles) {
    if constexpr (Types::schedules_keys) {
      if (!has_fixed && block.lane() == 0) s.has_tiles = has_tiles, s.tiles_known.arrive();
      has_fixed = true;
    }
  }
  GIWA_DEVICE void load_fixed(const work_item& work) {
    if constexpr (!Types::schedules_keys && !copies_first) {
      if (has_fixed) return;
      has_fixed = true;
      for (int c = 0; c < Types::groups; ++c) {
        [[maybe_unused]] row_terms terms[2];
        if constexpr (Types::stages_output)
          for (int i = 0; i < 2; ++i)
            terms[i] = p.call.terms_of_query(work.head.get(), work.first + 64 * c + block.lane() + 32 * i);
        s.b_empty[c].wait((fixed_turn & 1) ^ 1);
        if constexpr (Types::stages_output) {
          for (int i = 0; i < 2; ++i) s.own_terms[c][block.lane() + 32 * i] = terms[i];
          block.sync_warp();
        }
        if (arch::elect_one()) this->copy_b(work, c);
        block.sync_warp();
      }
      for (int c = 0; c < Types::groups; ++c) {
        s.a_empty[c].wait((fixed_turn & 1) ^ 1);
        if (arch::elect_one()) this->copy_a(work, c);
        block.sync_warp();
      }
      ++fixed_turn;
    }
  }
  /// Where dq of tile n of the queries is added. An item that comes again has added to it already. `tiles`: as for load_tile().
  template <class Tiles>
  GIWA_DEVICE auto dq_place_of(const work_item& work, const head_type& h, int n, const Tiles& tiles) const {
    const key_tiles<typename Types::mask> keys(p.call.call.mask, h, n * columns, columns, Types::block_m);
    const int tile = work.first / Types::block_m;
    int before;
    if constexpr (by_groups) {
      before = tiles.of_tile(block, before_of_lane);
    } else {
      before = keys.previous(tile);
      if (p.call.workspace.any_order && before >= 0) before = keys.next(0);
    }
    return typename Types::dq_place{work.careful != 0 ? Types::unused_part : p.call.dq_part_of(h, n, columns), tile,
                                    before + 1};
  }

  /// `tiles`: visible_groups at this tile, or the list.
  template <class Tiles>
  GIWA_DEVICE void load_tile(const work_item& work, const head_type& h, const tiles_list& list, int n,
                             const Tiles& tiles) {
    tile_keep keep[Types::groups];
    bool some = false;
    for (int c = 0; c < Types::groups; ++c) {
      keep[c] = keep_for(work, h, list, n, c, tiles);
      some = some || keep[c] == tile_keep::some;
    }
    const bool scrubs = work.careful != 0 && some;
    if constexpr (Types::reads_bias)
      bias.prepare(block, p, s, {h.batch, h.head, n * columns, work.first, work.careful == 0});
    const int begin = n * columns;
    [[maybe_unused]] terms_of_row terms[rows_of_lane];
    if constexpr (Types::is_split || Types::rows_are_keys) {  // before the wait, so that the loads overlap it
      GIWA_UNROLL
      for (int i = 0; i < rows_of_lane; ++i) {
        const int row = begin + block.lane() + 32 * i;
        if constexpr (!Types::is_split)
          terms[i] = this->terms_of(h, row);
        else
          terms[i] = Types::rows_are_keys ? Types::terms_of_query(p.call, h, row) : Types::terms_of_key(p.call, h, row);
      }
    }
    [[maybe_unused]] stdlib::conditional_t<Types::adds_dq, typename Types::dq_place, nothing> dq;
    if constexpr (Types::adds_dq && !copies_first) dq = dq_place_of(work, h, n, tiles);
    s.x_empty[x.stage()].wait(x.phase() ^ 1);
    if constexpr (copies_first) {
      this->copy_early(work, Types::origin(h, false, begin), scrubs);
      dq = dq_place_of(work, h, n, tiles);
      this->copy_late(work);
    }
    this->put_terms(terms);
    if (block.lane() == 0) {
      tile_note& note = s.notes[x.stage()];
      note.limits.put(typename Types::bounds(h));
      note.begin = begin;
      if constexpr (Types::adds_dq) {
        s.dq_places[place.stage()] = dq;
        s.place_full[place.stage()].arrive();
      }
      // A consumer for which the whole tile is kept has to see the NaN of cleared rows too.
      for (int c = 0; c < Types::groups; ++c)
        note.of[c] = scrubs || keep[c] == tile_keep::some ? action::some
                     : keep[c] == tile_keep::all          ? action::all
                     : Types::skips_unseen                ? action::none
                                                          : action::some;  // for its share of dq of the other's keys
    }
    block.sync_warp();
    if constexpr (!copies_first) {
      const auto at = Types::origin(h, !Types::rows_are_keys, begin);
      if (arch::elect_one()) this->copy_x(at, scrubs);
      s.y_empty[y.stage()].wait(y.phase() ^ 1);
      if (arch::elect_one()) this->copy_y(at, scrubs);
      block.sync_warp();
    }
    constexpr int x_bytes = Types::x_tile::bytes, y_bytes = Types::y_tile::bytes;
    if (!Types::is_split && scrubs) {
      if (block.lane() == 0) s.landed.arrive_and_expect(x_bytes + y_bytes);
      s.landed.wait(landed_phase), landed_phase ^= 1;
      if constexpr (!Types::is_split)
        clear_nonfinite_rows<Types::sums_y>(s.x[x.stage()], s.y[y.stage()], block.lane(), [&](int row) {
          if constexpr (Types::rows_are_keys)
            s.terms[x.stage()].lse[row] = nan_of<float>;
          else
            s.terms[x.stage()].nan[row] = nan_of<float>;
        });
      arch::fence_async_proxy();
      block.sync_warp();
    }
    if (block.lane() == 0) {
      s.x_full[x.stage()].arrive_and_expect(scrubs ? 0 : x_bytes);
      s.y_full[y.stage()].arrive_and_expect(scrubs ? 0 : y_bytes);
    }
    block.sync_warp();
    if constexpr (Types::reads_bias) bias.load(block, p, s);
    place.advance(), x.advance(), y.advance();
  }

  uint32 landed_phase = 0;
  [[no_unique_address]] stdlib::conditional_t<Types::reads_bias, sm90_bias_loader<Types>, typename Types::no_bias> bias;
  int before_of_lane = -1;  // the tile of keys that adds to dq of this lane's tile of the group before this one does
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
