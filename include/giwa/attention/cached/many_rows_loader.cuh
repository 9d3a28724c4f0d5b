// SPDX-License-Identifier: MIT
// The producer of the kernel for many rows: where the keys of a tile lie, and which item comes next.
#ifndef GIWA_ATTENTION_CACHED_MANY_ROWS_LOADER_CUH
#define GIWA_ATTENTION_CACHED_MANY_ROWS_LOADER_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/attention/cached/many_rows_copier.cuh>
#include <giwa/attention/forward/loader_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The K and V tiles of one sequence, contiguous or in pages. A tile has one box, or one for each page or part of a page.
template <class Types>
class many_rows_keys {
 public:
  GIWA_DEVICE many_rows_keys(const typename Types::params& p, typename Types::shared_storage& s,
                             const typename Types::work_tile& work)
      : p_(p),
        s_(s),
        sequence_(work.head.get().sequence),
        kv_head_(work.head.get().kv_head),
        is_paged_(p.call.views.is_paged()) {
    if (!is_paged_ || p.by_warps || !work.has_keys()) return;
    arch::copy_async_wait<0>();  // the item before may have requested a tile that it did not load
    request(work.first_tile);
  }

  /// Waits for the page numbers of tile n, and requests those of the next one: the load of K begins without a wait.
  GIWA_DEVICE void look_up(int n, int next) {
    if (p_.by_warps) many_rows_copier<Types>::note(s_, tile_ < 0, next);
    latest_ = following(latest_), tile_ = n;
    if (!is_paged_ || p_.by_warps) return;
    arch::copy_async_wait<0>();
    if (next * Types::block_n < sequence_.keys) request(next);
  }

  /// Starts the copy of tile n, the one that was looked up last or the one before. TMA fills zeros for a page that the cache
  /// does not have.
  template <class Copies, class Tile>
  GIWA_DEVICE void load(const tensor_map& map, int n, Tile& to, const Copies& copies, int rank) const {
    using box = tensor_box<Tile>;
    if (p_.by_warps)
      return many_rows_copier<Types>::request(p_, s_, sequence_, kv_head_, n, n == tile_, &map == &p_.v, &to,
                                              copies.full);
    copies.bytes += Tile::bytes;
    // Keys of long sequences leave the L2 cache before the kernels' instructions do.
    const auto policy = p_.shape.slots > 0 ? arch::l2_policy::evict_first : copies.policy;
    const auto load_box = [&](int first, int element, int row) {
      constexpr int slabs = Tile::columns / box::columns;
      const auto to_slab = [&](int slab) { return to.data() + slab * box::elements + first * box::columns; };
      if (Types::multicasts && p_.shape.cluster > 1) {
        GIWA_UNROLL
        for (int i = 0; i < slabs / 2; ++i) {
          const int slab = rank * (slabs / 2) + i, origin[4] = {slab * box::columns, row, kv_head_, element};
          arch::load_box_multicast(to_slab(slab), map, origin, copies.full, 3, policy);
        }
        return;
      }
      GIWA_UNROLL
      for (int slab = 0; slab < slabs; ++slab) {
        const int origin[4] = {slab * box::columns, row, kv_head_, element};
        arch::load_box(to_slab(slab), map, origin, copies.full, policy);
      }
    };
    if (!is_paged_) return load_box(0, sequence_.batch, n * Types::block_n);
    const auto& pages = s_.pages[n == tile_ ? latest_ : following(following(latest_))];
    const int page = p_.page_rows, rows = p_.box_rows;
    int row = pages.first_row, number = pages.number[0];
#pragma unroll 4
    for (int first = 0; first < Types::block_n; first += rows) {
      const int next = pages.number[first + rows];  // read before the copies are issued
      load_box(first, number, row);
      row = row + rows == page ? 0 : row + rows, number = next;
    }
  }

 private:
  GIWA_DEVICE static int following(int slot) { return slot == 2 ? 0 : slot + 1; }

  /// Starts copies of the page numbers of tile n.
  GIWA_DEVICE void request(int n) {
    auto& to = s_.pages[following(latest_)];
    const int first_key = n * Types::block_n, left = sequence_.keys - first_key, rows = p_.box_rows;
    const int first_page = static_cast<int>(int64{first_key} / p_.call.page_size);
    int row = first_key - first_page * p_.page_rows;
    to.first_row = row;
    const int* from = p_.call.views.cache.pages.indices + (sequence_.first_entry + first_page);
    const uint32 at = arch::shared_address(to.number);
#pragma unroll 2
    for (int first = 0; first < Types::block_n; first += rows) {
      if (first < left)
        arch::copy_async<4>(at + 4 * static_cast<uint32>(first), from);
      else
        to.number[first] = -1;  // the page table is not read past the last key
      row += rows;
      if (row == p_.page_rows) row = 0, ++from;
    }
    arch::copy_async_commit();
  }

  const typename Types::params& p_;
  typename Types::shared_storage& s_;
  const cached_sequence& sequence_;
  const int kv_head_;
  const bool is_paged_;
  int latest_ = 0, tile_ = -1;
};

/// Puts items into the block's queue: every grid-th, alternately from both ends of the grid, because items become smaller.
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
    walk items(p.call, shape);
    const bool divides = items.divides(block);
    const int cluster = shape.cluster, in_cluster = cluster > 1 ? arch::cluster_rank() : 0;
    // Shifts, as the size of a cluster is 1 or 2: a division of 64 bits is some 100 instructions.
    const int64 rank = block.block_rank() >> (cluster - 1), blocks = block.block_count() >> (cluster - 1);
    uint32 turn = 0;
    typename walk::position at;
    for (;; ++turn) {
      const int64 item = int64{turn} * blocks + (turn % 2 == 0 ? rank : blocks - 1 - rank);
      if (!items.find(block, item, at)) break;
      if (block.lane() == 0) {
        wait_for_space(s, turn);
        put(p, shape, s.work[turn % queue_depth], at, item, in_cluster, divides);
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
  /// It runs ahead as far as the queue has space: no other block waits for an item.
  GIWA_DEVICE static void wait_for_space(shared_storage& s, uint32 turn) {
    s.work_empty[turn % queue_depth].wait((turn / queue_depth & 1) ^ 1);
  }

  GIWA_DEVICE static void put(const params& p, const many_rows_shape& shape, work_tile& work,
                              const typename walk::position& at, int64 item, int in_cluster, bool divides) {
    const cached_sequence& q = at.sequence;
    const many_rows_item which = item_of(shape, at.work, q.keys, divides, item - at.first);
    const int tile = which.row_tile * shape.cluster + in_cluster;
    work.head.put({q, q.batch, which.head * p.call.heads_per_kv, q.offset, which.head});
    for (int c = 0; c < Types::consumers; ++c) {
      const packed_rows rows = rows_of(p.call, shape, p.heads, q, which.head, tile, c);
      work.rows[c].put(rows);
      work.first_query[c] = rows.query(0);
    }
    work.queries = p.shape.tile.queries;
    const query_range queries = queries_of(shape, tile);
    work.keys.put({p.mask, work.head.get(), queries.first, queries.count, Types::block_n});
    const auto& list = work.keys.get();
    const int first = divides ? which.piece * at.work.piece_tiles : 0;
    work.end_tile = list.count();
    if (divides && work.end_tile - first > at.work.piece_tiles) work.end_tile = first + at.work.piece_tiles;
    work.first_tile = list.next(first);
    if (work.first_tile > work.end_tile) work.first_tile = work.end_tile;  // the mask keeps nothing of the piece
    work.piece_keys = at.work.piece_tiles * Types::block_n;
    work.slot = divides && at.work.pieces > 1 ? item : -1;
    work.end = false;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
