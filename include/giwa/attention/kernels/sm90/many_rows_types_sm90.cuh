// SPDX-License-Identifier: MIT
// Types of the kernel for many rows: what it has other than the Hopper kernel of attention_forward.
#ifndef GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_TYPES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_TYPES_SM90_CUH

#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>
#include <giwa/attention/tuning/sm90.hpp>
#include <giwa/attention/work/many_rows.hpp>
#include <giwa/attention/work/packed_rows.hpp>

namespace giwa::inline GIWA_ABI::detail {

template <int HeadSize, int HeadSizeV>
using many_rows_policy = sm90_policy<many_rows_tile_of(HeadSize, HeadSizeV).rows,
                                     many_rows_tile_of(HeadSize, HeadSizeV).keys, HeadSize, HeadSizeV>;

/// The row map of packed rows whose keys are a range for each.
struct rows_are_packed_by_range : rows_are_packed {
  static constexpr bool by_range = true;
};

template <class T, class O, class Policy, class Mask, class Score>
struct many_rows_types : sm90_types<T, O, Policy, Mask, Score> {
  using base = sm90_types<T, O, Policy, Mask, Score>;
  using base::block_n, base::consumers, base::multicasts, base::queue_depth, base::stages;
  using typename base::consumer_note, typename base::k_note;
  using typename base::k_tile, typename base::q_tile, typename base::v_tile;
  using call_params = cached_params<T, T, O, Mask, Score>;
  using output = O;
  using tiles_of_keys = key_tiles<group_mask<Mask>>;
  using typename base::copies;  // in clusters, where all rows see all keys
  static constexpr bool has_chunks = false;
  static constexpr int columns = Policy::head_size_v;

  /// One head of keys of one sequence, for key_tiles.
  struct head_view {
    cached_sequence sequence;
    int batch, head, offset, kv_head;  // head: the first one of q that reads kv_head
    GIWA_DEVICE int queries() const { return sequence.queries; }
    GIWA_DEVICE int keys() const { return sequence.keys; }
  };
  /// A whole work tile or a split of one, and the needed K tiles in [first_tile, end_tile).
  struct work_tile {
    uninitialized<head_view> head;
    uninitialized<tiles_of_keys> keys;
    uninitialized<packed_rows> rows[consumers];
    int first_query[consumers];
    int queries;  // of a consumer
    int first_tile, end_tile, split_keys;
    int64 slot;  // of the split's partial in the workspace; -1: the work tile is whole
    bool end;    // no work tile: the queue ends here
    GIWA_DEVICE bool has_keys() const { return first_tile < end_tile; }
  };
  /// Where a box of a tile comes from: its page, and its first row there.
  struct box_source {
    int page, row;
  };
  static constexpr int least_box_rows = 8, most_boxes = block_n / least_box_rows;
  /// A tile of K, and its tile of V, that two other warps copy in place of the loader (many_rows_copier_sm90.cuh).
  struct tile_to_copy {
    const int* pages;  // of the sequence
    int keys, kv_head;
    int tile, next;     // tile -1: none, and none will follow
    int needs_scrub;    // of its values, as v_note has it
    bool begins, last;  // the first tile of a work tile, the last
  };
  /// The producer's notes on a V tile.
  struct v_note {
    int needs_scrub;  // the keys that it has, if it holds rows that some query does not see or that are past the end; else 0
    bool end;         // no tile: the stream of tiles ends here
    int has_nonfinite;  // NaNs and infinities of keys scrubbed; valid once the scrubbers have arrived
    GIWA_DEVICE int keys() const { return needs_scrub; }
  };
  // When the loader notes a tile, the keys of the third before it have been copied.
  static constexpr int most_noted = 4;
  struct tiles_to_copy_list {
    tile_to_copy tile[most_noted];
    arch::mbarrier made[most_noted];
    uint32 count;
  };
  struct shared_storage {
    pipeline<k_tile, stages, copies> k;
    pipeline<v_tile, stages, copies> v;
    stdlib::conditional_t<base::stores_tiles, typename base::q_and_o, typename base::q_alone> rows[consumers];
    work_tile work[queue_depth];
    k_note k_notes[stages];
    consumer_note consumer_notes[stages][consumers];
    v_note v_notes[stages];
    // Of a tile whose K is loaded, of the one before, whose V is, and of the next one.
    box_source sources[3][most_boxes];
    tiles_to_copy_list tiles_to_copy;
    arch::mbarrier q_full[consumers], q_empty[consumers], work_full[queue_depth], work_empty[queue_depth];
    arch::mbarrier scrubbed[stages];
  };
  struct params : many_rows_params<call_params> {
    group_mask<Mask> mask;
    int box_rows, page_rows;  // of a copy of keys by TMA; of a page
    bool by_chunks;           // pages are copied by cp.async, not TMA
    bool o_aligned;           // rows of o are aligned to 16 bytes
    bool o_by_tma;            // whole tiles of o are stored by TMA
    tensor_map q, o;          // (sequence, query, head, head size)
    tensor_map k, v;          // (element of the cache, head, row, head size)
    /// Keys of long sequences leave the L2 cache before the kernels' instructions do.
    GIWA_DEVICE arch::l2_policy policy() const {
      return this->shape.slots > 0 ? arch::l2_policy::evict_first : arch::l2_policy::normal;
    }
  };

  template <class Block>
  GIWA_DEVICE static void initialize(const Block& block, const params& p, shared_storage& s) {
    base::initialize(block, s, p.by_chunks ? 32 * base::scrubbers : 0);
    if (block.rank() != 0) return;
    s.tiles_to_copy.count = 0;
    for (arch::mbarrier& made : s.tiles_to_copy.made) made.initialize(1);
    arch::mbarriers_initialized();
  }
  /// wgmma may read what cp.async has written.
  GIWA_DEVICE static void tile_arrived(const params& p) {
    if (p.by_chunks) arch::fence_async_proxy();
  }

  GIWA_DEVICE static detail::query_range queries_of(const work_tile& work, int consumer) {
    return {work.first_query[consumer], work.queries};
  }
  GIWA_DEVICE static bool lacks_rows(const work_tile& work, int consumer) {
    return work.rows[consumer].get().rows < 64;
  }
  GIWA_DEVICE static packed_rows bounds_of(const work_tile& work, int consumer) { return work.rows[consumer].get(); }
  GIWA_DEVICE static rows_are_packed_by_range rows_at(int, int first_key) { return {{first_key}}; }

  /// Starts the load of a consumer's queries: one box of some heads of some queries for each slab.
  GIWA_DEVICE static void load_queries(const params& p, const work_tile& work, int consumer, q_tile& to,
                                       arch::mbarrier& full) {
    const packed_rows& rows = work.rows[consumer].get();
    if (rows.rows == 0) return full.arrive();
    using box = tensor_box<q_tile>;
    const cached_sequence& s = work.head.get().sequence;
    const consumer_tile& t = p.shape.tile;
    full.arrive_and_expect(t.heads * t.queries * q_tile::columns * static_cast<int>(sizeof(T)));
    for (int column = 0; column < q_tile::columns; column += box::columns) {
      const int origin[4] = {column, rows.first_head, s.first_query_row + work.first_query[consumer], s.q_batch};
      arch::load_box(to.data() + column * q_tile::rows, p.q, origin, full);
    }
  }

  /// v_note::needs_scrub of a V tile.
  GIWA_DEVICE static int needs_scrub(const params&, const tiles_of_keys& list, int n, tile_keep visible_by_mask) {
    return list.with_end(visible_by_mask, n) == tile_keep::some ? list.rows_of(n) : 0;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
