// SPDX-License-Identifier: MIT
// All gradients of attention in 16 bits by one mma.sync kernel: five products instead of the seven of two kernels.
#ifndef GIWA_ATTENTION_KERNELS_SM80_BACKWARD_ALL_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_BACKWARD_ALL_SM80_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/simt/forward_simt.cuh>
#include <giwa/attention/kernels/simt/store_gradient.cuh>
#include <giwa/attention/kernels/sm80/backward_all_steps_sm80.cuh>
#include <giwa/attention/kernels/sm80/backward_steps_sm80.cuh>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/tuning/sm80.hpp>
#include <giwa/attention/work/work_tiles.hpp>
#include <giwa/tile/mma_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// dq, dk and dv by tiles of keys, past which tiles of queries move. Shared memory bounds kernels of mma.sync, so warps have
/// large tiles of the products: four warps compute P and dv, four others dS and dk, each with the same keys and all queries
/// of a tile, so that P and dS are left operands in registers. A warp hands P to its partner through shared memory. dS goes
/// there too, and one tile later all eight warps multiply it with k: there is one barrier for each tile. The parts of dq
/// are added to fp32 sums in the workspace (dq_parts), in the order that sm90_dq_writer describes.
template <class T, class G, int HeadSize, int HeadSizeV, class Mask, class Score>
struct sm80_all_gradients_op {
  using tile_sizes = sm80_all_gradients_tile<HeadSize, HeadSizeV>;
  using call_params = backward_params<T, T, G, Mask, Score>;
  using head_type = typename call_params::head;
  static constexpr int max_threads = 256, min_blocks = 1, warps_of_group = sm80_thread_place::warps_of_group;
  static constexpr int block_m = tile_sizes::keys, queries = tile_sizes::queries, width = tile_sizes::width;
  static constexpr int warp_keys = block_m / warps_of_group;
  using map = warp_map<warp_keys, queries>;
  static constexpr int words = map::registers / 2;
  // The threads that note tiles and that announce dq.
  static constexpr int writer = max_threads - 32, publisher = max_threads / 2;

  // A row is an odd number of 16-byte units, so ldmatrix reads 8 rows from different banks.
  template <int Rows, int Columns>
  using tile = shared_tile<T, tile_shape<Rows, Columns>, padded<8>>;
  using rows_of_queries = tile<queries, width>;
  struct moving_tiles {
    rows_of_queries q, dout;
  };
  static constexpr int notes_at_once = 8;
  struct shared_storage {
    tile<block_m, width> k, v;
    moving_tiles moving[2];
    tile<block_m, queries> ds[2];
    uint4 weights[warps_of_group][words / 4][32];
    moving_terms<queries> terms[2];
    sm80_tile_note notes[notes_at_once];
    unsigned char is_bad[block_m];  // keys with NaN or infinity in k
    int any_bad, has_nan, item, first_part;
    uninitialized<head_type> head;
  };
  struct params {
    call_params call;
    attention_schedule schedule;
    int* counter;  // of the items that blocks have claimed; 0
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    // Claimed, so that an item that another one waits for is in a block that runs.
    if (block.rank() == 0) s.item = atomicAdd(p.counter, 1);
    block.sync();
    const attention_schedule::work_tile at = p.schedule.at(s.item);
    const int rows = p.call.keys_of(at.batch);
    const int64 tiles = p.schedule.query_tiles, all = ceil_div(rows, block_m), each = ceil_div(all, tiles),
                first = (tiles - 1 - at.tile) * each;
    for (int64 n = first; n < first + each && n < all; ++n)
      worker<decltype(block)>{block, p.call, s}.run(at.batch, at.head, static_cast<int>(n) * block_m, rows);
  }

 private:
  using scores_tile = register_tile<float, map>;
  using sums_tile = warp_tile<warp_keys, width>;
  using steps_type = score_steps<Mask, Score>;
  using tiles_list = visible_tiles<Mask, tile_axis::queries>;

  /// The group that loads.
  struct loaders {
    int own_rank;
    GIWA_DEVICE int rank() const { return own_rank; }
    GIWA_DEVICE static constexpr int size() { return max_threads / 2; }
  };

  /// A thread's work on one tile of keys.
  template <class Block>
  struct worker {
    const Block& block;
    const call_params& p;
    shared_storage& s;
    bool careful = false, has_bad = false, is_fresh = true;
    int first = 0, step = 0;

    /// One tile of the keys of sequence n and a head of k. Usually one pass: sums with a NaN need a second one, which removes
    /// rows of queries with NaN from the products (mark_nonfinite) and leaves out dq.
    GIWA_DEVICE void run(int n, int kv_head, int first_key, int rows) {
      first = first_key;
      sums_tile sums;
      const int heads = p.call.heads_per_kv;
#pragma unroll 1
      for (;; careful = true) {
        sums.fill(0);
        is_fresh = true;
#pragma unroll 1
        for (int i = 0; i < heads; ++i) {
          block.sync();  // all threads are done with the head before
          if (block.rank() == 0) s.head.put(p.call.at(n, kv_head * heads + i));
          block.sync();
          if (first < s.head.get().keys()) add_head(sums);
        }
        if (careful || !any_is_nan(block, sums, s.has_nan)) break;
      }
      const head_type& h = s.head.get();
      const auto [rank, lane, group, warp] = sm80_thread_place{};
      const auto to = group == 0 ? p.key_rows(p.views.dv, h, rows) : p.key_rows(p.views.dk, h, rows);
      store_gradient(block, lane, sums, to, first + warp * warp_keys, group == 0 ? 1.0f : p.call.scale, p.accumulate);
    }

   private:
    /// In a step, tile note(0) is loaded, note(-1) is multiplied, dq of note(-2) is added, and that of note(-3) is announced.
    GIWA_DEVICE const sm80_tile_note& note(int i) const { return s.notes[(step + i + notes_at_once) % notes_at_once]; }

    GIWA_DEVICE void add_head(sums_tile& sums) {
      const head_type& h = s.head.get();
      step = 0;
      if (is_fresh) {
        if (block.rank() < block_m) s.is_bad[block.rank()] = 0;
#pragma unroll 1  // copies of any layout are long
        for (int i = 0; i < 2; ++i) load_async(block, i == 0 ? h.k : h.v, {first, 0}, i == 0 ? s.k : s.v);
      }
      if (block.rank() == writer) {
        if (is_fresh) s.any_bad = 0;
        for (int i = -3; i < 0; ++i) s.notes[i + notes_at_once].part = -1;
        s.first_part = p.dq_part_of(h, 0);
        int n = ceil_div(h.queries(), queries);
#pragma unroll 1
        for (int i = 0; i < 2; ++i) n = write_note(h, i, n);
      }
      block.sync();
#pragma unroll 1
      for (;; ++step) {
        const int next = note(0).n;
        uint32 operand[words] = {};
        if (step > 0) find_operand(h, operand);
        // The warps of P load, after they have handed it over: those of dS have more to do until then.
        if (const int rank = arch::read_thread_rank(); rank < max_threads / 2 && next >= 0) {
          moving_tiles& to = s.moving[step % 2];
#pragma unroll 1
          for (int i = 0; i < 2; ++i)
            load_async(loaders{rank}, i == 0 ? h.q : p.query_rows(p.views.dout, h), {int64{next} * queries, 0},
                       i == 0 ? to.q : to.dout);
          s.terms[step % 2].load_async(loaders{rank}, p, h, next * queries);
        }
        copy_commit();
        if (step > 0) {
          const sm80_thread_place me;
          const moving_tiles& in = s.moving[(step - 1) % 2];
          multiply_add(me.lane, sums, operand, me.group == 0 ? in.dout : in.q, 0);
          if (me.group == 0) add_dq();
        }
        copy_wait();
        block.sync();  // what was loaded and dS are there, and what the next step overwrites has been read
        if (next < 0) break;
        if (is_fresh) find_bad_keys();
        is_fresh = false;
      }
      ++step;
      add_dq();
      publish();
      block.sync();
      ++step;
      publish();
    }
    /// Notes the last tile before n, and returns it. The last one comes first: under a causal mask tiles of keys begin with
    /// the same queries then, and add to dq at the same pace.
    GIWA_DEVICE int write_note(const head_type& h, int i, int n) const {
      const tiles_list tiles(p.call.mask, h, first, block_m, queries);
      sm80_tile_note& to = s.notes[i % notes_at_once];
      n = to.n = tiles.previous(n);
      to.part = -1;
      if (n < 0) return n;
      to.keep = tiles.keep(n);
      // Nor may keys past the end add to dq.
      if (to.keep == tile_keep::all && first + block_m > h.keys()) to.keep = tile_keep::some;
      if (careful) return n;
      const key_tiles<Mask> keys(p.call.mask, h, n * queries, queries, block_m);
      int before = keys.previous(first / block_m);
      if (p.workspace.any_order && before >= 0) before = keys.next(0);
      to.part = s.first_part + n * dq_parts::of_tile(HeadSize), to.after = before + 1;
      return n;
    }

    /// 0 times NaN is NaN, in dq too of queries that do not see a key. So keys with NaN or infinity are cleared, and their
    /// scores are NaN instead.
    GIWA_DEVICE void find_bad_keys() {
      constexpr int threads_of_key = max_threads / block_m, share = width / threads_of_key;
      const int key = block.rank() / threads_of_key, column = block.rank() % threads_of_key * share;
      const uint32 found = block.ballot(has_nonfinite_run<share>(s.k, key, column));
      constexpr uint32 all_of_key = (1u << threads_of_key) - 1;
      const int first_lane = block.lane() / threads_of_key * threads_of_key;
      if (block.lane() == first_lane && (found >> first_lane & all_of_key) != 0) s.is_bad[key] = 1;
      if (block.lane() == 0 && found != 0) block.atomic_add(s.any_bad, 1);
      block.sync();
      has_bad = s.any_bad != 0;
      if (!has_bad) return;
      if (s.is_bad[key] != 0)
        for (int i = 0; i < share; ++i) s.k(key, column + i) = convert<T>{}(0.0f);
      block.sync();
    }

    /// P or dS of a tile as a left operand.
    GIWA_DEVICE void find_operand(const head_type& h, uint32 (&operand)[words]) {
      const int loaded = (step - 1) % 2, begin = note(-1).n * queries;
      const tile_keep keep = note(-1).keep;
      moving_tiles& in = s.moving[loaded];
      const bool scrubs = careful && keep == tile_keep::some;
      if (scrubs) {
        mark_nonfinite<true>(block, in.q, in.dout);
        block.sync();
      }
      if (sm80_thread_place{}.group == 1) add_dq();
      scores_tile scores;  // or dP
      scores.fill(0);
      {
        const sm80_thread_place me;
        multiply_add(me.lane, scores, me.group == 0 ? s.k : s.v, me.warp * warp_keys,
                     transposed(me.group == 0 ? in.q : in.dout), 0);
      }
      if (scrubs) {
        block.sync();
        clear_marked<true>(block, in.q, in.dout);
        block.sync();
      }
      const auto [rank, lane, group, warp] = sm80_thread_place{};
      const sm80_all_steps<map, T, Mask, Score> steps{p.call, h, s.terms[loaded], first + warp * warp_keys, begin};
      if (group == 0) {
        if (has_bad)
          scores.for_each(lane, [&](float& x, int row, int) {
            if (s.is_bad[warp * warp_keys + row] != 0) x = nan_of<float>;
          });
        if (keep == tile_keep::all)
          steps.template weigh<false>(block, lane, scores, operand, s.weights[warp]);
        else
          steps.template weigh<true>(block, lane, scores, operand, s.weights[warp]);
        arch::barrier_arrive(1 + warp, 64);
      } else {
        publish();
        if (rank == writer) write_note(h, step + 1, note(0).n);
        arch::barrier_sync(1 + warp, 64);
        if (keep == tile_keep::all)
          steps.template differentiate<false>(block, lane, scores, operand, s.weights[warp]);
        else
          steps.template differentiate<true>(block, lane, scores, operand, s.weights[warp]);
        store_operand(lane, operand, s.ds[step % 2], warp * warp_keys);
      }
    }

    GIWA_DEVICE void add_dq() const {
      sm80_add_dq<queries, width, HeadSize>(block, p.workspace, note(-2), s.ds[(step - 1) % 2], s.k);
    }
    /// Says that a tile's dq has been added, one step later, when this takes no time.
    GIWA_DEVICE void publish() const {
      if (block.rank() != publisher) return;
      const sm80_tile_note& of = note(-3);
      if (of.part < 0 || (p.workspace.any_order && of.after != 0)) return;
      arch::store_release(p.workspace.added + of.part, first / block_m + 1);
    }
  };
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
