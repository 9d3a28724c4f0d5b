// SPDX-License-Identifier: MIT
// The producer of many rows: where keys lie, and which work tile comes next.
#ifndef GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_LOADER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_LOADER_SM90_CUH

#include <giwa/attention/kernels/sm90/forward_loader_sm90.cuh>
#include <giwa/attention/kernels/sm90/many_rows_copier_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The K and V tiles of one sequence: one box of TMA each, or copied by other warps if the cache has pages.
template <class Types>
class many_rows_keys {
 public:
  GIWA_DEVICE many_rows_keys(const typename Types::params& p, typename Types::shared_storage& s,
                             const typename Types::work_tile& work)
      : p_(p), s_(s), work_(work), is_paged_(p.call.views.is_paged()) {}

  /// Has the other warps copy tile n.
  GIWA_DEVICE void look_up(int n, int next, int needs_scrub) {
    if (!is_paged_) return;
    const cached_sequence& sequence = work_.head.get().sequence;
    many_rows_copier<Types>::note(
        s_, {p_.call.views.cache.pages.indices + sequence.first_entry, sequence.keys, work_.head.get().kv_head, n, next,
             needs_scrub, !has_begun_, next >= work_.end_tile});
    has_begun_ = true;
  }

  /// Starts the copy of tile n.
  template <class Copies, class Tile>
  GIWA_DEVICE void load(const tensor_map& map, int n, Tile& to, const Copies& copies, int rank) const {
    using box = tensor_box<Tile>;
    if (!p_.by_chunks) copies.bytes += Tile::bytes;
    if (is_paged_) return;
    const int element = work_.head.get().sequence.batch, kv_head = work_.head.get().kv_head;
    const auto policy = p_.policy();
    constexpr int slabs = Tile::columns / box::columns;
    const bool shares = Types::multicasts && p_.shape.cluster > 1;
    GIWA_UNROLL
    for (int i = 0; i < slabs; ++i) {
      const int slab = shares ? rank * (slabs / 2) + i : i;
      const int origin[4] = {slab * box::columns, n * Types::block_n, kv_head, element};
      if (!shares)
        arch::load_box(to.data() + slab * box::elements, map, origin, copies.full, policy);
      else if (i < slabs / 2)
        arch::load_box_multicast(to.data() + slab * box::elements, map, origin, copies.full, 3, policy);
    }
  }

 private:
  const typename Types::params& p_;
  typename Types::shared_storage& s_;
  const typename Types::work_tile& work_;
  const bool is_paged_;
  bool has_begun_ = false;
};

/// Puts work tiles into the block's queue: every grid-th, alternately from both ends of the grid, because they become smaller.
template <class Types>
struct many_rows_scheduler {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using work_tile = typename Types::work_tile;
  using walk = many_rows_walk<typename Types::call_params>;
  static constexpr int queue_depth = Types::queue_depth;

  /// A warp.
  template <class Block>
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    const many_rows_shape shape = with_constants(p.shape);
    walk tiles(p.call, shape);
    const bool divides = tiles.divides(block);
    const int cluster = shape.cluster, in_cluster = cluster > 1 ? arch::cluster_rank() : 0;
    // Shifts, as the size of a cluster is 1 or 2: a division of 64 bits is some 100 instructions.
    const int64 rank = block.block_rank() >> (cluster - 1), blocks = block.block_count() >> (cluster - 1);
    uint32 turn = 0;
    typename walk::position found;
    for (;; ++turn) {
      const int64 number = int64{turn} * blocks + (turn % 2 == 0 ? rank : blocks - 1 - rank);
      if (!tiles.find(block, number, found)) break;
      if (block.lane() == 0) {
        wait_for_space(s, turn);
        put(p, shape, s.work[turn % queue_depth], found, number, in_cluster, divides);
        s.work_full[turn % queue_depth].arrive();
      }
      block.sync_warp();
    }
    if (block.lane() != 0) return;
    wait_for_space(s, turn);
    s.work[turn % queue_depth].end = true;
    s.work_full[turn % queue_depth].arrive();
  }

 private:
  /// The shape, with what the compiler knows of it: the first copy waits for instructions from memory, and a division is some 20.
  GIWA_DEVICE static many_rows_shape with_constants(many_rows_shape shape) {
    shape.consumers = Types::consumers, shape.tile_keys = Types::block_n;
    if (!Types::multicasts) shape.cluster = 1;
    return shape;
  }
  /// It runs ahead as far as the queue has space: no other block waits for a work tile.
  GIWA_DEVICE static void wait_for_space(shared_storage& s, uint32 turn) {
    s.work_empty[turn % queue_depth].wait((turn / queue_depth & 1) ^ 1);
  }

  GIWA_DEVICE static void put(const params& p, const many_rows_shape& shape, work_tile& work,
                              const typename walk::position& found, int64 number, int in_cluster, bool divides) {
    const cached_sequence& q = found.sequence;
    const many_rows_work_tile tile = work_tile_of(shape, found.work, q.keys, divides, number - found.first);
    const int block_tile = tile.row_tile * shape.cluster + in_cluster;
    work.head.put({q, q.batch, tile.head * p.call.heads_per_kv, q.offset, tile.head});
    for (int c = 0; c < Types::consumers; ++c) {
      const packed_rows rows = rows_of(p.call, shape, p.heads, q, tile.head, block_tile, c);
      work.rows[c].put(rows);
      work.first_query[c] = rows.query(0);
    }
    work.queries = p.shape.tile.queries;
    const query_range queries = queries_of(shape, block_tile);
    work.keys.put({p.mask, work.head.get(), queries.first, queries.count, Types::block_n});
    const auto& list = work.keys.get();
    const int first = divides ? tile.split * found.work.split_tiles : 0;
    work.end_tile = list.count();
    if (divides && work.end_tile - first > found.work.split_tiles) work.end_tile = first + found.work.split_tiles;
    work.first_tile = list.next(first);
    if (work.first_tile > work.end_tile) work.first_tile = work.end_tile;  // the mask leaves nothing of the split
    work.split_keys = found.work.split_tiles * Types::block_n;
    work.slot = divides && found.work.splits > 1 ? number : -1;
    work.end = false;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
