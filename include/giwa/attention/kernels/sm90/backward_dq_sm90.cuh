// SPDX-License-Identifier: MIT
// dq in the Hopper kernel that computes all gradients together: its product, and its way to the workspace.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_DQ_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_DQ_SM90_CUH

#include <giwa/arch/acquire_release.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/kernels/sm90/backward_types_sm90.cuh>
#include <giwa/tile/element_run.hpp>
#include <giwa/tile/mma_sm90.cuh>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// 0 times NaN is NaN, in dq too of queries that do not see a key. So a warp clears those of its 16 keys that have NaN or
/// infinity, in an item's first tile before the product of dq, and their scores are NaN instead.
///
/// To look at all keys takes 2200 cycles while products keep shared memory busy. So one score of each key is asked first: a key with
/// NaN or infinity has no finite product with any query, as 0 times infinity is NaN, infinity plus anything finite infinity, and
/// infinity minus infinity NaN; and no later addition makes NaN or infinity finite. This holds for queries that are zeros, past the
/// end or cleared, too. So if one score of a key is finite, the key is. If it is not, perhaps because of the query, or because the sum
/// is beyond fp32, the warp looks at the keys.
template <class Types>
class sm90_bad_keys {
 public:
  using element = typename Types::element;
  // Not for long sequences, whose loop is 0.975 to 1.00 times as fast so, while their items have more tiles. H200, 2026-11-30.
  static constexpr bool asks_scores = !Types::is_long;

  /// Before an item's first tile.
  GIWA_DEVICE void forget() {
    if constexpr (asks_scores) bad = unknown;
  }
  /// Finds them if they are new: two bits for each. Where products run, hence without a branch.
  template <class Block, class Tile>
  GIWA_DEVICE void find(const Block& block, bool is_new, const Tile& keys) {
    using two = decltype(pack<element>(0.f, 0.f));
    const int thread = rank_in_warpgroup(), lane = thread % 32, row = thread / 32 * 16 + lane / 2,
              count = is_new ? half : 0;
    const two zero = pack<element>(0.f, 0.f);
    two sum = zero;
#pragma unroll 1  // more registers would be spilled
    for (int i = 0; i < count; i += 8) {
      two part[4];
      __builtin_memcpy(part, &keys(row, lane % 2 * half + i), sizeof part);
      for (int k = 0; k < 4; ++k) sum = __hfma2(part[k], zero, sum);
    }
    if (is_new) bad = block.ballot(__hneu(sum.x, sum.x) || __hneu(sum.y, sum.y));
  }
  /// After the product of the scores, before a modifier and the mask.
  template <class Block, class Tile, class Scores>
  GIWA_DEVICE void replace(const Block& block, bool is_first, Tile& keys, Scores& scores) {
    if (bad == 0) return;
    if constexpr (asks_scores)
      if (is_first) {
        float sum = 0;  // not NaN if one score of each of the thread's keys is finite
        for (int slot = 0; slot < Scores::map::rows; ++slot)
          sum = fused_multiply_add(scores.value[2 * slot], 0.0f, sum);
        bad = 0;
        if (!block.any(!(sum == 0))) return;
        find(block, true, keys);
        if (bad == 0) return;
      }
    clear(is_first, keys);
    scores.for_each(rank_in_warpgroup(), [&](float& score, int key, int) {
      if ((bad >> 2 * (key % 16) & 3) != 0) score = nan_of<float>;
    });
  }
  /// In an item's first tile.
  template <class Tile>
  GIWA_DEVICE void clear(bool is_first, Tile& keys) const {
    const int thread = rank_in_warpgroup(), lane = thread % 32, row = thread / 32 * 16 + lane / 2;
    if (is_first && (bad >> (lane & ~1) & 3) != 0) {
      using run = element_run<element, 8>;
#pragma unroll 1
      for (int i = 0; i < half; i += 8) run::filled(convert<element>{}(0.0f)).write(&keys(row, lane % 2 * half + i));
    }
  }

 private:
  static constexpr int half = Types::policy::width_x / 2;  // two lanes read a key
  static constexpr uint32 unknown = ~uint32{0};

  uint32 bad = 0;
};

/// A consumer's share of dq += dS^T k over the 128 keys of a block: 64 queries, or 64 columns. Both consumers write dS to
/// shared memory, and each multiplies one tile later, so that neither waits for the other. All waits and fences lie under
/// products. The part is added to the workspace by sm90_dq_writer. `turn` is the number of the tile among those of all
/// items, from which all stages follow.
template <class Types>
class sm90_dq_product {
 public:
  using shared_storage = typename Types::shared_storage;
  using tile = warpgroup_tile<Types::is_long ? Types::columns : 64>;

  /// Whether the next tile is an item's first.
  GIWA_DEVICE bool is_first() const { return tiles == 0; }
  /// After the first products of a tile have begun: announces the part of the tile before the last.
  template <class Block>
  GIWA_DEVICE void begin_tile(const Block& block, shared_storage& s, int index, uint32 turn) const {
    if (tiles >= 2) announce(block, s, index, turn - 2);
    const counting_cursor<Types::stages_ds> ds{turn};
    if constexpr (Types::reads_bias)
      s.bias.full[ds.stage()].wait(ds.phase());  // the loader has waited for the memory
    else
      s.ds_empty[ds.stage()].wait(ds.phase() ^ 1);
  }
  /// Where a thread writes dS of the tile, and reads its bias: the row of a matrix of 8 x 8.
  GIWA_DEVICE static uint32 place_of_thread(shared_storage& s, int index, int thread, uint32 turn) {
    auto& to = s.dq.ds[counting_cursor<Types::stages_ds>{turn}.stage()][index];
    const int lane = thread % 32, row = lane / 16 * 8 + lane % 8, key = thread / 32 * 16 + lane / 8 % 2 * 8;
    return arch::shared_address(to.chunk(row, key));
  }
  /// Writes dS of the tile to shared memory, or of its queries from `first` on: transposed, so that a thread has one address.
  template <int Words>
  GIWA_DEVICE void write_gradients(shared_storage& s, int index, int thread, uint32 turn,
                                   const uint32 (&gradients)[Words], int first = 0) const {
    const uint32 at = place_of_thread(s, index, thread, turn);
    GIWA_UNROLL
    for (int i = 0; i < Words / 4; ++i) {
      const uint32 matrices[4] = {gradients[4 * i], gradients[4 * i + 1], gradients[4 * i + 2], gradients[4 * i + 3]};
      arch::store_matrices<true>(at + (first + 16 * i) * Types::ds_row_bytes, matrices);
    }
  }
  /// Starts the product for the tile before. For the first tile of an item it multiplies what is there, which is not used: a
  /// branch between products would make ptxas wait for them.
  template <class Block>
  GIWA_DEVICE void multiply(const Block& block, shared_storage& s, int index, uint32 turn, tile& dq) const {
    arch::fence_async_proxy();
    release(block, s.ds_full[counting_cursor<Types::stages_ds>{turn}.stage()]);
    start(s, index, turn - 1, dq);
  }
  /// Waits until the writer has room for the part of the tile before.
  GIWA_DEVICE void await_part(shared_storage& s, int index, uint32 turn) const {
    await_room(s, index, is_first() ? turn : turn - 1);
  }
  /// The memory for dS of the next tile, when it is free: between two items a warp may use the columns of its 16 keys.
  GIWA_DEVICE auto& free_slab(shared_storage& s, int index, uint32 turn) const {
    using slab =
        shared_tile<typename Types::gradient_element, tile_shape<Types::columns, 64>, swizzled<swizzle::bytes_128>>;
    const counting_cursor<Types::stages_ds> ds{turn};
    s.ds_empty[ds.stage()].wait(ds.phase() ^ 1);
    return *reinterpret_cast<slab*>(&s.dq.ds[ds.stage()][index]);
  }
  /// Writes the part of the tile before to shared memory, when its product is complete.
  template <class Block>
  GIWA_DEVICE void write(const Block& block, shared_storage& s, int index, int thread, uint32 turn, const tile& dq) {
    if (block.any(!is_first())) write_part(block, s, index, thread, turn - 1, dq);
    ++tiles;
  }
  /// Starts the product for the last tile of an item; `turn` is that of the next one.
  template <class Block>
  GIWA_DEVICE void start_last(const Block& block, shared_storage& s, int index, uint32 turn, tile& dq) const {
    if (tiles >= 2) announce(block, s, index, turn - 2);
    start(s, index, turn - 1, dq);
  }
  /// Announces its part, when it is complete.
  template <class Block>
  GIWA_DEVICE void finish(const Block& block, shared_storage& s, int index, int thread, uint32 turn, const tile& dq) {
    await_room(s, index, turn - 1);
    write_part(block, s, index, thread, turn - 1, dq);
    announce(block, s, index, turn - 1);
    tiles = 0;
  }

 private:
  static constexpr bool by_queries = Types::columns == 128;  // else by columns

  GIWA_DEVICE static void start(shared_storage& s, int index, uint32 turn, tile& dq) {
    const counting_cursor<Types::stages_ds> ds{turn};
    const int first_row = by_queries ? 64 * index : 0, first_column = by_queries ? 0 : 64 * index, stage = ds.stage();
    s.ds_full[stage].wait(ds.phase());
    dq.fill(0);
    arch::fence_operand(dq.value);
    arch::wgmma_fence();
    for (int c = 0; c < Types::consumers; ++c)
      if constexpr (Types::is_long)
        giwa::multiply<0, Types::how>(dq, transposed(s.a[c]), first_column, transposed(s.dq.ds[stage][c]), c > 0);
      else
        giwa::multiply<0, Types::how>(dq, s.dq.ds[stage][c], first_row, s.a[c], c > 0, 0, 0, first_column);
    arch::wgmma_commit();
  }
  GIWA_DEVICE static void await_room(shared_storage& s, int index, uint32 turn) {
    const counting_cursor<Types::stages_dq> part{turn};
    s.dq_empty[index][part.stage()].wait(part.phase() ^ 1);
  }
  template <class Block>
  GIWA_DEVICE static void write_part(const Block& block, shared_storage& s, int index, int thread, uint32 turn,
                                     const tile& dq) {
    if (block.lane() == 0) s.ds_empty[counting_cursor<Types::stages_ds>{turn}.stage()].arrive();
    float* const to = s.dq.parts[index][counting_cursor<Types::stages_dq>{turn}.stage()];
    GIWA_UNROLL
    for (int i = 0; i < tile::map::registers / 4; ++i)
      *reinterpret_cast<float4*>(to +
                                 (Types::is_long ? dq_parts::long_offset(thread, i) : dq_parts::offset(thread, i))) =
          make_float4(dq.value[4 * i], dq.value[4 * i + 1], dq.value[4 * i + 2], dq.value[4 * i + 3]);
  }
  template <class Block>
  GIWA_DEVICE static void announce(const Block& block, shared_storage& s, int index, uint32 turn) {
    arch::fence_async_proxy();
    release(block, s.dq_full[index][counting_cursor<Types::stages_dq>{turn}.stage()]);
  }
  template <class Block>
  GIWA_DEVICE static void release(const Block& block, arch::mbarrier& barrier) {
    block.sync_warp();
    if (block.lane() == 0) barrier.arrive();
  }

  uint32 tiles = 0;  // of the item so far
};

/// Adds the parts of one consumer to the sums in the workspace. One thread. Tiles of keys add to a part in ascending
/// order, each after the one before it (dq_place::after), so that the sum has the same bits in every run. In any order each
/// adds after the first, which stores, so that nothing has to be cleared. No block waits forever: a tile of keys is claimed
/// after the one that it waits for, and a block takes what it has claimed in order. Under a mask of blocks tiles of keys are at other
/// queries at the same time, so in any order the part that is ready first stores.
template <class Types>
class sm90_dq_writer {
 public:
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;

  GIWA_DEVICE static void run(const params& p, shared_storage& s, int consumer) {
    const backward_workspace& w = p.call.workspace;
    ring_cursor<Types::stages_dq> part;
    ring_cursor<Types::places> place;
    for (;; part.advance(), place.advance()) {
      // A tile's place is known before its part: the tile before it is usually added while the products run.
      s.place_full[place.stage()].wait(place.phase());
      const auto at = s.dq_places[place.stage()];
      if (at.part == Types::no_more_parts) break;
      const bool adds = at.part != Types::unused_part;
      const int64 number = adds ? at.part + consumer : 0;
      bool stores = at.after == 0;
      const bool claims = claims_first && w.any_order && adds;
      if (claims)
        stores = arch::load_acquire(w.added + number) != stored;
      else if (adds && at.after != 0)
        await_added(w.added + number, at.after);
      s.dq_full[consumer][part.stage()].wait(part.phase());
      if constexpr (claims_first)
        if (claims && stores) {
          // Only now: what has claimed a part stores it at once, without a wait.
          stores = claim_first(w.added + number);
          if (!stores) await_added(w.added + number, stored);
        } else if (claims) {
          arch::fence_async_proxy_global();
        }
      if (adds) {
        float* const to = w.dq + number * Types::policy::dq_floats;
        const float* const from = s.dq.parts[consumer][part.stage()];
        const int bytes = 4 * (Types::is_long ? Types::columns : 64) *
                          dq_parts::columns_of(Types::head_size, Types::head_size_v, consumer);
        if (stores)
          arch::store_bytes(to, from, bytes);
        else
          arch::add_floats(to, from, bytes);
        arch::commit_stores();
        arch::wait_stores_read<0>();
      }
      s.dq_empty[consumer][part.stage()].arrive();
      if (adds && (!w.any_order || stores)) {
        arch::wait_stores<0>();
        set_added(w.added + number, claims ? stored : at.tile + 1);
      }
    }
    arch::wait_stores<0>();
  }

 private:
  static constexpr bool claims_first = mask_traits<typename Types::mask>::has_blocks;
  static constexpr int stored = 1, storing = -1;  // of a part, where the first one claims it

  /// Whether this is the first claim.
  GIWA_DEVICE static bool claim_first(int* added) { return atomicCAS(added, 0, storing) == 0; }
  GIWA_DEVICE static void await_added(const int* added, int tile) {
#if defined(GIWA_RANDOM_DELAYS)
    arch::sleep_at_random();
#endif
    while (arch::load_acquire(added) != tile) {
    }
    arch::fence_async_proxy_global();
  }
  GIWA_DEVICE static void set_added(int* added, int tile) {
    arch::fence_async_proxy_global();
    arch::store_release(added, tile);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
