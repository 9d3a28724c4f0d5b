// SPDX-License-Identifier: MIT
// What keeps the warpgroups of attention on Hopper in work: who plans, who loads, who checks, and the memory they share.
#ifndef GIWA_ATTENTION_FORWARD_PRODUCER_SM90_CUH
#define GIWA_ATTENTION_FORWARD_PRODUCER_SM90_CUH

#include <giwa/attention/forward/nonfinite.cuh>
#include <giwa/attention/split_fp16/exponents.cuh>
#include <giwa/tile/pipeline_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A block's members for a warp.
template <class Block>
struct one_warp : Block {
  GIWA_DEVICE explicit one_warp(const Block& b) : Block(b) {}
  GIWA_DEVICE int rank() const { return this->lane(); }
  GIWA_DEVICE static constexpr int size() { return 32; }
};

/// Which queries come next, which tiles of keys they need and what the mask leaves of each: found out once, by threads that have
/// time, and told with the tile to those who multiply.
template <class T, class O, class Policy, class Mask, class Score>
struct sm90_attention_supply {
  static constexpr int rows = Policy::rows, columns = Policy::columns, groups = Policy::groups, stages = Policy::stages;
  static constexpr int head_size = Policy::head_size, head_size_v = Policy::head_size_v;
  // fp32 comes as fp16 pieces with exponents, side by side in a row.
  static constexpr bool in_pieces = stdlib::same_as<T, fp32>;
  using element = stdlib::conditional_t<in_pieces, fp16, T>;
  template <int Rows, int Columns>
  using input_tile =
      shared_tile<element, tile_shape<Rows, Policy::pieces * round_up(Columns, 64)>, swizzled<swizzle::bytes_128>>;
  using query_tile = input_tile<64, head_size>;         // (queries of a warpgroup, head size)
  using key_tile = input_tile<columns, head_size>;      // (keys, head size)
  using value_tile = input_tile<columns, head_size_v>;  // (keys, head size of v)
  static constexpr swizzle output_swizzle = head_size_v % 64 == 0   ? swizzle::bytes_128
                                            : head_size_v % 32 == 0 ? swizzle::bytes_64
                                                                    : swizzle::bytes_32;
  // What TMA stores: (queries of a warpgroup, head size of v). A wider output goes there from registers.
  static constexpr bool stores_tiles = sizeof(O) == 2 && Policy::stages_output;
  using output_tile = shared_tile<stdlib::conditional_t<stores_tiles, O, element>, tile_shape<64, head_size_v>,
                                  swizzled<output_swizzle>>;

  // Of items: one that is multiplied, one that is loaded, and what comes after them, as far as there is room.
  static constexpr int ring = head_size > 192 ? 3 : 4;

  // Where all blocks have the same to do, two of them get each tile of keys and values by one read of the L2 cache: each loads
  // half of its slabs for both.
  static constexpr bool shares_loads =
      stdlib::same_as<Mask, full> && key_tile::columns % 128 == 0 && value_tile::columns % 128 == 0;
  using copies_of_keys = tensor_copies<shares_loads ? 2 : 1>;

  using exponent = signed char;
  /// A tile of queries of one head.
  struct item {
    uninitialized<attention_head<T, O>> head;
    uninitialized<key_tiles<Mask>> keys;
    int first_query, first_tile;  // first_tile: of keys
    bool end;                     // there is no such item, and none will follow
    exponent exponents[groups];   // of the queries, where they come in pieces
    GIWA_DEVICE bool has_keys() const { return first_tile < keys.get().count(); }
  };
  struct key_note {
    int first_key;
    bool last;  // of the item
    exponent key_exponent, value_exponent;
  };
  /// What the mask leaves of a tile of keys for one warpgroup, and whether that needs none behind it.
  struct share {
    tile_keep keep;
    bool last;
  };
  struct value_note {
    bool doubtful;  // it holds rows that not every query sees
    bool end;
    int found;  // NaNs and infinities that the checkers took out; theirs until they have arrived
  };
  struct queries_and_output {
    query_tile q;
    output_tile o;
  };
  struct queries_alone {
    query_tile q;
  };
  struct shared_storage {
    pipeline<key_tile, stages, copies_of_keys> keys;
    pipeline<value_tile, stages, copies_of_keys> values;
    stdlib::conditional_t<stores_tiles, queries_and_output, queries_alone> group[groups];
    item items[ring];
    key_note key_notes[stages];
    share shares[stages][groups];
    value_note value_notes[stages];
    int batch, head, tile;  // the planner's, which has few registers
    arch::mbarrier queries_full[groups], queries_empty[groups], item_full[ring], item_empty[ring], checked[stages];
    arch::mbarrier ending;  // the loader comes to an item's last tiles
  };
  using pieces_or_nothing = stdlib::conditional_t<in_pieces, attention_pieces, nothing>;
  struct params {
    attention_params<T, O, Mask, Score> call;
    attention_grid grid;
    int items;    // of this launch
    int cluster;  // blocks that go through the same keys, each with its own tile of queries; an item is for all of them
    int* counter;  // of items that blocks have taken besides their first, or null: each takes every grid-th
    bool store_by_map;
    pieces_or_nothing pieces;
    tensor_map q, k, v, o;  // (sequence, head, row, head size)
  };

  template <class Block>
  GIWA_DEVICE static void initialize(const Block& block, shared_storage& s) {
    s.keys.initialize(block, 4 * groups);
    s.values.initialize(block, 4 * groups + checkers);
    if (block.rank() != 0) return;
    for (int i = 0; i < groups; ++i) s.queries_full[i].initialize(1), s.queries_empty[i].initialize(4);
    for (int i = 0; i < ring; ++i)
      s.item_full[i].initialize(1), s.item_empty[i].initialize(4 * groups + 1);  // the loader
    for (int i = 0; i < stages; ++i) s.checked[i].initialize(checkers);
    s.ending.initialize(1);
    arch::mbarriers_initialized();
  }

  static constexpr int checkers = 2;  // warps
  // The loader is as many tiles of keys from an item's end when the next is claimed. It takes some 2000 cycles to plan.
  static constexpr int tiles_ahead = 4;

  /// Whether a tile of values holds rows that not every query sees. Behind the end of a tensor TMA puts zeros; behind that of a
  /// packed sequence lies another.
  GIWA_DEVICE static bool doubtful(const params& p, const key_tiles<Mask>& list, int n) {
    if constexpr (in_pieces) return false;  // pieces are finite
    return (p.call.views.is_packed() ? list.keep(n) : list.kept_by_mask(n)) == tile_keep::some;
  }

  /// The planner, one thread: which tile of queries comes next. An item ahead of the loader, as it has divisions to do, but not
  /// before the loader comes to the end of its own: who claims work early keeps others from it.
  template <class Block>
  GIWA_DEVICE static void plan(const Block& block, const params& p, shared_storage& s) {
    uint32 turn = 0;
    const auto next_item = [&]() -> item& {
      s.item_empty[turn % ring].wait((turn / ring & 1) ^ 1);
      if (turn > 0) s.ending.wait((turn - 1) & 1);
      return s.items[turn % ring];
    };
    const int cluster = shares_loads ? p.cluster : 1, rank = shares_loads ? arch::cluster_rank() : 0;
    int i = static_cast<int>(block.block_rank()) / cluster;
    while (i < p.items) {
      const attention_grid::place at = p.grid.at(p.grid.first + i);
      s.batch = at.batch, s.head = at.head, s.tile = static_cast<int>(at.tile);
      while (!is_apart(p, at)) {
        item& it = next_item();
        it.head.put(p.call.at(s.batch, s.head));
        const attention_head<T, O>& head = it.head.get();
        const int count = ceil_div(head.queries(), rows * cluster);
        if (s.tile >= count) break;
        it.first_query = (s.tile * cluster + rank) * rows;
        it.keys.put({p.call.mask, head, it.first_query, rows, columns});
        it.first_tile = it.keys.get().next(0);
        if constexpr (in_pieces)
          for (int g = 0; g < groups; ++g)
            if (it.first_query + 64 * g < head.queries())
              it.exponents[g] = static_cast<exponent>(
                  p.pieces.q.exponent(head.head, head.first_query_row, head.batch, it.first_query / 64 + g));
        it.end = false;
        s.item_full[turn++ % ring].arrive();
        s.tile += static_cast<int>(p.grid.tiles);
        if (s.tile >= count) break;
      }
      next_item();
      const int step = static_cast<int>(block.block_count()) / cluster;
      i = step + (p.counter == nullptr ? i : atomicAdd(p.counter, 1));
    }
    next_item().end = true;
    s.item_full[turn % ring].arrive();
  }

  /// Whether an item's head is left to the kernel without pieces.
  GIWA_DEVICE static bool is_apart(const params& p, const attention_grid::place& at) {
    if constexpr (in_pieces) return p.pieces.apart[at.batch * p.call.views.q.extent(2) + at.head] != 0;
    return false;
  }

  /// The loader, one thread.
  template <class Block>
  GIWA_DEVICE static void load(const Block& block, const params& p, shared_storage& s) {
    auto keys = s.keys.producer(block);
    auto values = s.values.producer(block);
    const int rank = shares_loads ? arch::cluster_rank() : 0;
    for (uint32 turn = 0;; ++turn) {
      s.item_full[turn % ring].wait(turn / ring & 1);
      const item& it = s.items[turn % ring];
      if (it.end) {
        for (int g = 0; g < groups; ++g) {
          s.queries_empty[g].wait((turn & 1) ^ 1);
          s.queries_full[g].arrive();
        }
        values.put([&](value_tile&, const auto& copies) { s.value_notes[copies.number].end = true; });
        return;
      }
      // All is found out before the wait for a slot: from there to the copy nothing is left to do.
      const key_tiles<Mask>& list = it.keys.get();
      const int count = list.count(), sequence = it.head.get().sequence, kv_head = it.head.get().kv_head,
                first_row = it.head.get().first_key_row;
      const auto put_values = [&](const value_note& note, int n) {
        values.put([&](value_tile& to, const auto& copies) {
          s.value_notes[copies.number] = note;
          copies.multicast(p.v, giwa::index<4>{sequence, kv_head, first_row + n * columns, 0}, to, rank);
        });
      };
      // Keys are needed before the queries' place is free, and values one product later than keys.
      int before = -1;
      value_note of_before{};
      int ahead = it.first_tile;
      const auto look_ahead = [&] {
        if (ahead > count) return;
        if (ahead < count)
          ahead = list.next(ahead + 1);
        else
          s.ending.arrive(), ahead = count + 1;
      };
      for (int i = 0; i < tiles_ahead; ++i) look_ahead();
      for (int n = it.first_tile; n < count;) {
        look_ahead();
        const int next = list.next(n + 1);
        key_note note{n * columns, next >= count, 0, 0};
        if constexpr (in_pieces) {
          const int batch = it.head.get().batch;
          note.key_exponent = static_cast<exponent>(p.pieces.k.exponent(kv_head, first_row, batch, n));
          note.value_exponent = static_cast<exponent>(p.pieces.v.exponent(kv_head, first_row, batch, n));
        }
        share shares[groups];
        for (int g = 0; g < groups; ++g) shares[g] = share_of(it, n, next, 64 * g);
        const value_note of_values{doubtful(p, list, n), false, 0};
        keys.put([&](key_tile& to, const auto& copies) {
          s.key_notes[copies.number] = note;
          for (int g = 0; g < groups; ++g) s.shares[copies.number][g] = shares[g];
          copies.multicast(p.k, giwa::index<4>{sequence, kv_head, first_row + n * columns, 0}, to, rank);
        });
        if (before < 0)
          load_queries(p, s, it, turn);
        else
          put_values(of_before, before);
        before = n, n = next, of_before = of_values;
      }
      if (before < 0)
        load_queries(p, s, it, turn);
      else
        put_values(of_before, before);
      if (ahead <= count) s.ending.arrive();  // where a mask answers otherwise the second time
      s.item_empty[turn % ring].arrive();
    }
  }

  /// Of tile n, behind which comes tile `next`, for the warpgroup whose queries begin at `row` of the item's.
  GIWA_DEVICE static share share_of(const item& it, int n, int next, int row) {
    const key_tiles<Mask>& list = it.keys.get();
    const int first_query = it.first_query + row;
    const tile_keep keep = list.keep(n, first_query, 64);
    // A score modifier is not shown what lies outside, as rows at the end do.
    const bool asks = score_steps<Mask, Score>::modified && it.head.get().queries() - first_query < 64;
    return {asks && keep == tile_keep::all ? tile_keep::some : keep, !list.needs_from(next, first_query, 64)};
  }

  GIWA_DEVICE static void load_queries(const params& p, shared_storage& s, const item& it, uint32 turn) {
    const attention_head<T, O>& head = it.head.get();
    for (int g = 0; g < groups; ++g) {
      arch::mbarrier& full = s.queries_full[g];
      s.queries_empty[g].wait((turn & 1) ^ 1);
      if (!it.has_keys()) {
        full.arrive();
      } else {
        full.arrive_and_expect(query_tile::bytes);
        giwa::load(p.q, giwa::index<4>{head.sequence, head.head, head.first_query_row + it.first_query + 64 * g, 0},
                   s.group[g].q, full);
      }
    }
  }

  /// Checker number `part`, a warp, looks through its share of values that not every query sees, and takes NaN and infinity out,
  /// as 0 times them is NaN: of the whole tile, where another may do so too.
  template <class Block>
  GIWA_DEVICE static void check(const Block& block, shared_storage& s, int part) {
    auto values = s.values.consumer(block);
    for (;;) {
      const int slot = values.next();
      value_tile& tile = values.wait();
      value_note& note = s.value_notes[slot];
      if (note.end) break;
      if (note.doubtful) {
        if (block.any(has_non_finite<checkers>(block.lane() + 32 * part, tile))) {
          take_non_finite(one_warp<Block>(block), tile, note.found);
          arch::fence_async_proxy();
        }
        block.sync_warp();
        if (block.lane() == 0) s.checked[slot].arrive();
      }
      values.release();
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
