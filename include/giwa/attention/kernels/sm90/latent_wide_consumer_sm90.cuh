// SPDX-License-Identifier: MIT
// S, P and O of many latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_CONSUMER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_CONSUMER_SM90_CUH

#include <giwa/attention/kernels/sm90/latent_wide_output_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A warpgroup, which has half of the columns of O. The two have the scores of the tiles of a leaf in turn: one computes S and P, and
/// hands P over; both add P V of their columns. Both have the same m of each row, and each has l of the tiles that it has scored.
template <class Types, class Mask, class Score, class Block>
struct latent_wide_consumer : latent_wide_output<Types, Mask, Score, Block> {
  using base = latent_wide_output<Types, Mask, Score, Block>;
  using base::block, base::p, base::call, base::s, base::lane, base::index, base::thread, base::warp, base::steps,
      base::o, base::softmax, base::half, base::row_slots, base::threads, base::sync;
  using typename base::params, typename base::shared_storage, typename base::operand, typename base::barrier,
      typename base::map, typename base::score_map;
  using news = typename Types::news;

  /// A tile of keys that one of the two scores.
  struct leaf_tile {
    int tile;
    tile_keep visible;
    uint32 turn;
    [[no_unique_address]] tile_of_list<typename Types::call_params> list;
    GIWA_DEVICE int stage() const { return static_cast<int>(turn % Types::stages); }
    GIWA_DEVICE uint32 phase() const { return turn / Types::stages & 1; }
    GIWA_DEVICE int first_key() const { return tile * Types::leaf_keys; }
  };

  warpgroup_tile<Types::leaf_keys> scores;  // (rows, keys)
  uint32 weights[score_map::registers / 2];
  uint32 turn = 0;

  GIWA_DEVICE latent_wide_consumer(const Block& b, const params& parameters, shared_storage& storage)
      : base(b, parameters, storage) {}

  /// Computes all work tiles of a split.
  GIWA_DEVICE void run(work_tile_reader<Block> reader, int64 split, int column) {
    local_partial<map> earlier;
    for (; reader.has_work(); reader.next()) {
      const few_rows_work_tile& work = reader.work();
      const packed_rows rows = rows_of(call, work, p.splits.group, Types::rows);
      load_q(work, rows);
      float* to = p.splits.slot_of(split, column, work.has_beginning(), 0);
      for (int leaf = work.begin; leaf < work.end; ++leaf) {
        attend(work, rows, leaf);
        float m[row_slots], l[row_slots];
        this->finish_leaf(leaf, m, l);
        const rows_ref<map> own{m, l, o.value};
        if (work.has_beginning()) {
          if (leaf > work.begin) merge_rows<map>(earlier, {m, l, o.value}, own);
          if (leaf + 1 < work.end) {
            earlier.save(m, l, o.value);
            continue;
          }
          if (work.has_end()) {
            this->store_output(work, rows, m, l);
            continue;
          }
        }
        this->store_partial(rows, m, l, to);
        to += partial_slot::floats(p.splits.shape.rows, Types::columns);
      }
    }
  }

 private:
  GIWA_DEVICE int p_barrier(int from) const { return Types::barrier_of(barrier::p, 4 * from + warp); }

  GIWA_DEVICE void load_q(const few_rows_work_tile& work, const packed_rows& rows) const {
    if constexpr (rotates_queries<Score>)
      load_rotated_rows<threads>(block.rank(), call, work, rows, Types::rows, p.q_aligned, s.q);
    else
      copy_packed_rows<Types, threads>(block.rank(), p, call, work, rows, s);
    arch::fence_async_proxy();
    sync();
  }

  /// Sums the keys of a leaf.
  GIWA_DEVICE void attend(const few_rows_work_tile& work, const packed_rows& rows, int leaf) {
    softmax.reset();
    o.fill(0);
    latent_wide_walk<Types, Block> tiles(block, p, rows, leaf);
    const auto take = [&](bool scores_it = false) {
      leaf_tile at{tiles.tile, tiles.visible, turn++, {}};
      if (scores_it) at.list.read(block, call, rows, at.first_key());
      tiles.next();
      return at;
    };
    if (index == 0 && tiles.exists()) {
      const leaf_tile own = take(true);
      multiply_scores(own);
      add_own(work, rows, own);
    }
    while (tiles.exists()) {
      const leaf_tile other = take();
      if (!tiles.exists()) {
        const bool is_strange = take_weights();
        multiply_values(other);
        arch::wgmma_wait<0>();
        release_values(work, rows, other, is_strange);
        break;
      }
      const leaf_tile own = take(true);
      const bool is_strange = take_weights();
      multiply_values(other);
      multiply_scores(own);
      release_values(work, rows, other, is_strange);
      add_own(work, rows, own);
    }
  }

  // --- Products
  GIWA_DEVICE void wait_for_keys(const leaf_tile& at, int part) const {
    s.k.full[at.stage()][part].wait(at.phase());
    if (p.copies != key_copies::boxes) arch::fence_async_proxy();  // wgmma may then read what others have written
  }
  /// S of a tile, part by part as its columns come.
  GIWA_DEVICE void multiply_scores(const leaf_tile& at) {
    arch::fence_operand(scores.value);
    multiply_part<0>(at), multiply_part<1>(at), multiply_part<2>(at), multiply_part<3>(at);
    arch::wgmma_commit();
    arch::wgmma_wait<0>();
    arch::fence_operand(scores.value);
  }
  template <int Part>
  GIWA_DEVICE void multiply_part(const leaf_tile& at) {
    constexpr int begin = 64 * Types::slab_of(Part), depth = 64 * Types::slab_of(Part + 1) - begin;
    wait_for_keys(at, Part);
    arch::wgmma_fence();
    multiply<depth, descriptors::in_turn>(scores, s.q, 0, transposed(s.k.tile[at.stage()]), Part > 0, begin, begin);
  }
  /// O += P V of this warpgroup's columns.
  GIWA_DEVICE void multiply_values(const leaf_tile& at) {
    arch::fence_operand(o.value);
    arch::fence_operand(weights);
    arch::wgmma_fence();
    multiply<descriptors::in_turn>(o, weights, s.k.tile[at.stage()], true, half * index);
    arch::wgmma_commit();
  }
  /// After O += P V.
  GIWA_DEVICE void release_values(const few_rows_work_tile& work, const packed_rows& rows, const leaf_tile& at,
                                  bool is_strange) {
    arch::fence_operand(o.value);
    block.sync_warp();
    if (lane == 0) s.k.empty[at.stage()][index].arrive();
    if (is_strange) this->add_nonfinite(work, rows, at.tile);
  }

  /// P of this warpgroup's tile, whose S is complete, and O += P V.
  GIWA_DEVICE void add_own(const few_rows_work_tile& work, const packed_rows& rows, const leaf_tile& at) {
    at.list.apply(block, thread, steps, scores, rows, at.visible, rows_are_packed{at.first_key()});
    const bool is_strange = Types::scrubs && at.visible == tile_keep::some && this->scrub(rows, at.tile, at.stage());
    float largest[row_slots], sum[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) largest[r] = softmax.m[r];
    reduce_rows_of_thread(scores, largest, larger{});
    const bool raises = block.any(softmax.exceeds_slack(largest));
    if (raises) {
      reduce_over_lanes<score_map>(block, largest, larger{});
      raise(largest);
      if (lane % 4 == 0) {
        GIWA_UNROLL
        for (int r = 0; r < row_slots; ++r) s.m[map::row(thread, r)] = softmax.m[r];
      }
    }
    softmax.weigh(scores, sum);
    to_operand<operand>(scores, weights);
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i)
      s.p[i][thread] = {weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3]};
    if (lane == 0) s.news[warp] = (raises ? news::raised : 0) | (is_strange ? news::scrubbed : 0);
    arch::barrier_arrive(p_barrier(index), 64);
    multiply_values(at);
    softmax.add(sum);
    arch::wgmma_wait<0>();
    release_values(work, rows, at, is_strange);
  }
  /// Takes P, and m if it was raised, from the other warpgroup. Returns whether values were scrubbed.
  GIWA_DEVICE bool take_weights() {
    arch::barrier_sync(p_barrier(1 - index), 64);
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint4 x = s.p[i][thread];
      weights[4 * i] = x.x, weights[4 * i + 1] = x.y, weights[4 * i + 2] = x.z, weights[4 * i + 3] = x.w;
    }
    const int all = s.news[warp];
    if (block.any((all & news::raised) != 0)) {
      const float largest[row_slots] = {s.m[map::row(thread, 0)], s.m[map::row(thread, 1)]};
      raise(largest);
    }
    return block.any((all & news::scrubbed) != 0);
  }
  GIWA_DEVICE void raise(const float (&largest)[row_slots]) {
    float factor[row_slots];
    softmax.raise(largest, steps.scale_log2(), factor);
    o.transform_rows(factor, [](float x, float f) { return x * f; });
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
