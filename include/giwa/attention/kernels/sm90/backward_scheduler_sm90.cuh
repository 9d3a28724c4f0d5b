// SPDX-License-Identifier: MIT
// The scheduler of the Hopper kernels of attention_backward: picks work items, and loads their keys and values where schedules_keys says so.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_SCHEDULER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_SCHEDULER_SM90_CUH

#include <giwa/attention/kernels/sm90/backward_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Puts work items into the block's queue: those that it claims from a shared counter, and again those that turned out to
/// have NaN. A separate thread, because the next item must be known when the loader gets to it: in the
/// loader it made dk and dv of 512 tokens 30 % slower (128, full; H200, 2026-11-23).
template <class Types>
class sm90_backward_scheduler {
 public:
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using work_item = typename Types::work_item;

  template <class Block>
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    sm90_backward_scheduler me{p, s};
    const int step = static_cast<int>(block.block_count());
    const int work_tiles = me.work_tiles();
    int unused = 0;
    // Where items wait for each other, a block claims its first one too: it might start after those that wait.
    for (int i = Types::adds_dq ? atomicAdd(p.counter, 1) : static_cast<int>(block.block_rank()); i < work_tiles;) {
      me.put_tiles(i);
      me.next_free(unused);  // an earlier claim would keep work from other blocks
      if constexpr (Types::adds_dq) me.await_last();
      i = (Types::adds_dq ? 0 : step) + atomicAdd(p.counter, 1);
    }
    // The items in flight may come again.
    for (int idle = 0; idle < Types::queue_depth; ++idle) {
      work_item& work = me.next_free(idle);
      work.idle = true;
      me.put();
    }
    me.next_free(unused).end = true;
    me.put();
  }

 private:
  GIWA_DEVICE sm90_backward_scheduler(const params& of, shared_storage& storage) : p(of), s(storage) {}

  /// Waits until the loader has loaded the last tile of what was claimed, when the consumers have two tiles to go. Tiles of keys
  /// of a head follow each other in the order of their claims. With a claim one work tile ahead, a block that ends
  /// first may have a late tile and wait for blocks that end last: under a causal mask for half of the time, if few
  /// heads alternate.
  GIWA_DEVICE void await_last() {
    s.last_loaded.wait(claims & 1);
    ++claims;
  }
  static constexpr bool may_list = Types::adds_dq && !Types::is_long;
  GIWA_DEVICE int work_tiles() const {
    if constexpr (may_list)
      if (p.call.call.ragged) return *p.call.workspace.keys.count * static_cast<int>(p.schedule.heads.divisor());
    return p.work_tiles;
  }
  /// Puts the item of work tile i, where dq is added. Listed tiles are of all sequences and the first heads that alternate, then of the
  /// next heads.
  GIWA_DEVICE void put_tile(int i) {
    const auto& call = p.call.call;
    const int sharers = Types::sharers(p.call);
    // Without divisions in the common case: the loader waits for this thread.
    const auto head_of = [&](int shared) { return sharers == 1 ? shared : shared / sharers; };
    if constexpr (may_list)
      if (call.ragged) {
        const tile_list& listed = p.call.workspace.keys;
        const int heads = static_cast<int>(p.schedule.heads.divisor()),
                  section = static_cast<int>(p.schedule.section.divisor());
        int tile = static_cast<int>(i / p.schedule.heads), shared = i - tile * heads;
        if (section < heads) {
          const int of_section = *listed.count * section, last = heads / section - 1;
          const int number = i / of_section < last ? i / of_section : last;
          const int width = number == last ? heads - last * section : section, rest = i - number * of_section;
          tile = rest / width, shared = number * section + rest % width;
        }
        const listed_tile at = listed.tiles[tile];
        const int head = head_of(shared);
        const int n = p.call.views.in.is_packed() ? 0 : at.sequence,
                  offset = call.bottom_right ? at.keys - at.queries : call.diagonal_offset;
        const head_place h{at.sequence, head * call.heads_per_kv, offset,           n,          n,
                           head,        at.first_query_row,       at.first_key_row, at.queries, at.keys};
        return put_item(h, at.sequence, head, shared - head * sharers, at.tile * Types::block_m, at.keys, i);
      }
    int tile = i;
    if (i >= p.last.first) tile = p.last.first + (i - p.last.first) / p.last.parts;
    const auto at = p.schedule.at(p.schedule.first + tile);
    const int head = head_of(at.head);
    const head_place h = call.place_of(at.batch, head * call.heads_per_kv);
    put_item(h, at.batch, head, at.head - head * sharers,
             static_cast<int>(p.schedule.query_tiles - 1 - at.tile) * Types::block_m, h.keys(), i);
  }
  /// Puts the items of work tile i.
  GIWA_DEVICE void put_tiles(int i) {
    if constexpr (Types::adds_dq) return put_tile(i);
    const int64 tiles = p.schedule.query_tiles;
    const auto at = p.schedule.at(p.schedule.first + i);
    const auto put_item = [&](int batch, int sequence, int head, int first, int rows) {
      this->put_item(p.call.call.place_of(sequence, Types::rows_are_keys ? head * p.call.call.heads_per_kv : head),
                     batch, head, 0, first, rows);
    };
    if constexpr (Types::rows_are_keys) {
      const int rows = p.call.keys_of(at.batch), head = at.head;
      int reader = p.call.first_reader(at.batch);
      while (rows > 0 && !p.call.is_reader(reader, at.batch)) ++reader;
      // The first keys come first: under a causal mask they have the most queries.
      int keys = Types::block_m;
      if constexpr (Types::policy::narrows)
        if (p.narrow) keys = 64;
      for (int64 n = tiles - 1 - at.tile; n * keys < rows; n += tiles) {
        const int first = static_cast<int>(n) * keys;
        put_item(at.batch, reader, head, first, keys < rows - first && keys < Types::block_m ? first + keys : rows);
      }
    } else {
      if constexpr (Types::gives_scores) {  // all heads that share what the score modifier takes gradients of
        const auto end = p.call.end_of(at.batch, at.head);
        for (int batch = at.batch; batch < end.sequence; ++batch)
          for (int head = at.head; head < end.head; ++head) {
            const int rows = p.call.call.at(batch, head).queries();
            for (int64 n = at.tile; n * Types::block_m < rows; n += tiles)
              put_item(batch, batch, head, static_cast<int>(n) * Types::block_m, rows);
          }
      } else {
        const int rows = p.call.call.at(at.batch, at.head).queries();
        for (int64 n = at.tile; n * Types::block_m < rows; n += tiles)
          put_item(at.batch, at.batch, at.head, static_cast<int>(n) * Types::block_m, rows);
      }
    }
  }
  GIWA_DEVICE void put_item(const head_place& h, int batch, int head, int share, int first, int rows, int i = 0) {
    int unused = 0;
    work_item& work = next_free(unused);
    work.head.put(h);
    work.batch = batch, work.head_index = head, work.first = first, work.rows = rows;
    put_heads(work, share, Types::sharers(p.call));
    if constexpr (Types::adds_dq) {
      work.last = true;
      work.divided = i >= p.last.first;
      if (work.divided) {
        const int from = i - p.last.first, parts = p.last.parts;
        work.share = from % parts, work.sharers = parts;
        work.sums = p.call.divided_sums_of(from / parts, parts);
      } else if (work.sharers > 1) {
        work.sums = p.call.shared_sums_of(work.head.get(), first / Types::block_m);
      }
    }
    put();
  }
  GIWA_DEVICE void put_heads(work_item& work, int share, int sharers) const {
    if constexpr (Types::rows_are_keys) {
      const int group = p.call.call.heads_per_kv, each = sharers == 1 ? group : ceil_div(group, sharers),
                from = work.head_index * group;
      work.share = share, work.sharers = sharers;
      work.first_head = from + share * each;
      work.end_head = from + (share + 1 < sharers ? (share + 1) * each : group);
    }
  }
  /// The next free entry of the queue. An item that was in it and must come again is put first; then `idle` is reset.
  GIWA_DEVICE work_item& next_free(int& idle) {
    for (;;) {
      const int at = static_cast<int>(turn % Types::queue_depth);
      s.work_empty[at].wait((turn / Types::queue_depth & 1) ^ 1);
      work_item& work = s.work[at];
      work.careful = work.again;
      work.again = 0, work.idle = work.end = false;
      if constexpr (Types::adds_dq) work.last = work.divided = false;
      if (work.careful == 0) return work;
      put_heads(work, 0, 1);
      put();
      idle = 0;
    }
  }
  GIWA_DEVICE void put() {
    const int at = static_cast<int>(turn % Types::queue_depth);
    s.work_full[at].arrive();
    ++turn;
    if constexpr (Types::schedules_keys) load_fixed(s.work[at]);
  }
  /// Loads the keys and values of an item if the loader finds tiles of it, where dq is added: the loader has the first tile to load
  /// meanwhile. b is free for the next rows earlier than a: dq of the last tile needs a.
  GIWA_DEVICE void load_fixed(const work_item& work) {
    if (work.end) return;
    s.tiles_known.wait(items++ & 1);
    if (!s.has_tiles) return;
    const uint32 phase = (fixed_turn++ & 1) ^ 1;
    const auto at = [&](int c) { return Types::origin(work.head.get(), true, work.first + 64 * c); };
    for (int c = 0; c < Types::groups; ++c) {
      s.b_empty[c].wait(phase);
      s.fixed_full[c].arrive_and_expect(Types::a_tile::bytes + Types::b_tile::bytes);
      giwa::load(p.b, at(c), s.b[c], s.fixed_full[c]);
    }
    for (int c = 0; c < Types::groups; ++c) {
      s.a_empty[c].wait(phase);
      giwa::load(p.a, at(c), s.a[c], s.fixed_full[c]);
    }
  }

  const params& p;
  shared_storage& s;
  uint32 turn = 0, claims = 0, items = 0, fixed_turn = 0;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
