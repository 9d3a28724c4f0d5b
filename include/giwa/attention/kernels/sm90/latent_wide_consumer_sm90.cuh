// SPDX-License-Identifier: MIT
// S, P and O of many latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_CONSUMER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_CONSUMER_SM90_CUH

#include <giwa/attention/kernels/sm90/latent_wide_output_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A tile of keys.
template <class Types>
struct latent_wide_tile {
  int tile;
  tile_keep visible;
  uint32 turn;
  GIWA_DEVICE int stage() const { return static_cast<int>(turn % Types::stages); }
  GIWA_DEVICE uint32 phase() const { return turn / Types::stages & 1; }
  GIWA_DEVICE int first_key() const { return tile * Types::leaf_keys; }
};

/// The warpgroup that computes S and P of all tiles, hands P over, and adds P V of the first columns.
template <class Types, class Mask, class Score, class Block>
struct latent_wide_scorer : latent_wide_output<Types, Mask, Score, Block, 0> {
  using base = latent_wide_output<Types, Mask, Score, Block, 0>;
  using base::block, base::p, base::call, base::s, base::lane, base::thread, base::warp, base::steps, base::o,
      base::row_slots, base::sync;
  using typename base::params, typename base::shared_storage, typename base::operand, typename base::barrier,
      typename base::map;
  using news = typename Types::news;
  using leaf_tile = latent_wide_tile<Types>;
  using score_map = warpgroup_map<Types::leaf_keys>;
  static constexpr int slack = 6;  // of m, as in attention_forward
  static_assert(score_map::rows == row_slots);

  warpgroup_tile<Types::leaf_keys> scores;  // (rows, keys)
  uint32 weights[score_map::registers / 2];
  online_softmax<score_map, 0, slack> softmax;
  uint32 turn = 0;

  GIWA_DEVICE latent_wide_scorer(const Block& b, const params& parameters, shared_storage& storage)
      : base(b, parameters, storage) {}

  /// Sums the keys of a leaf, and returns m, in units of log2, and l.
  GIWA_DEVICE void sum_leaf(const few_rows_work_tile& work, const packed_rows& rows, int leaf, float (&m)[row_slots],
                            float (&l)[row_slots]) {
    softmax.reset();
    bool follows = false;
    for (latent_wide_walk<Types, Block> tiles(block, p, rows, leaf); tiles.exists(); follows = true) {
      const leaf_tile at{tiles.tile, tiles.visible, turn++};
      [[maybe_unused]] tile_of_list<typename Types::call_params> list;
      list.read(block, call, rows, at.first_key());
      multiply_scores(at);
      if (follows) arch::barrier_sync(Types::barrier_of(barrier::met, warp), 64);
      list.apply(block, thread, steps, scores, rows, at.visible, rows_are_packed{at.first_key()});
      const bool is_strange = Types::scrubs && at.visible == tile_keep::some && scrub(rows, at);
      this->release(s.k.empty[at.stage()][0]);
      float sum[row_slots];
      const bool raises = weigh(follows, sum);
      hand_over(raises, is_strange);
      this->fence_values(weights);
      multiply<descriptors::in_turn>(o, weights, s.k.tile[at.stage()], true);
      arch::wgmma_commit();
      softmax.add(sum);
      tiles.next();
      arch::wgmma_wait<0>();
      arch::fence_operand(o.value);
      this->release(s.k.empty[at.stage()][1]);
      if (is_strange) this->add_nonfinite(work, rows, at.tile);
    }
    softmax.finish(block);
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const float largest = softmax.m[r];
      m[r] = largest == -infinity_of<float> ? largest : reference_of(largest, steps.scale_log2(), 0);
      l[r] = softmax.l[r];
      if (lane % 4 == 0) s.sums[leaf & 1][map::row(thread, r)] = make_float2(m[r], l[r]);
    }
    sync();
  }

 private:
  /// S of a tile, part by part as its columns come.
  GIWA_DEVICE void multiply_scores(const leaf_tile& at) {
    arch::fence_operand(scores.value);
    multiply_part<0>(at), multiply_part<1>(at), multiply_part<2>(at), multiply_part<3>(at), multiply_part<4>(at);
    arch::wgmma_commit();
    arch::wgmma_wait<0>();
    arch::fence_operand(scores.value);
  }
  template <int Part>
  GIWA_DEVICE void multiply_part(const leaf_tile& at) {
    constexpr int begin = 64 * Types::slab_of(Part), depth = 64 * Types::slabs_of(Part);
    s.k.full[at.stage()][Part].wait(at.phase());
    if (p.copies != key_copies::boxes) arch::fence_async_proxy();  // wgmma may then read what others have written
    arch::wgmma_fence();
    multiply<depth, descriptors::in_turn>(scores, s.q, 0, transposed(s.k.tile[at.stage()]), Part > 0, begin, begin);
  }
  /// For tiles of which some row does not see every key, when S is complete.
  GIWA_DEVICE bool scrub(const packed_rows& rows, const leaf_tile& at) const {
    return scrub_keys<4>(block, thread, s.k.tile[at.stage()], rows.keys - at.first_key(), s.has_nonfinite,
                         [&] { arch::fence_async_proxy(), arch::barrier_sync(barrier::of_scorer, 128); });
  }
  /// P of a tile. Returns whether m of some row of the warp was raised. The tiles after the first one of a leaf have their weights without
  /// their maxima, unless they are too large.
  GIWA_DEVICE bool weigh(bool follows, float (&sum)[row_slots]) {
    bool raises = false;
    if (follows) find_weights(sum);
    if (!follows || block.any(!softmax.within_slack(sum))) {
      float largest[row_slots];
      GIWA_UNROLL
      for (int r = 0; r < row_slots; ++r) largest[r] = softmax.m[r];
      reduce_rows_of_thread(scores, largest, larger{});
      raises = block.any(softmax.exceeds_slack(largest));
      reduce_over_lanes<score_map>(block, largest, larger{});
      float factor[row_slots];
      softmax.raise(largest, steps.scale_log2(), factor);
      if (lane % 4 == 0) {
        GIWA_UNROLL
        for (int r = 0; r < row_slots; ++r) s.factor[map::row(thread, r)] = factor[r];
      }
      this->scale(factor);
      find_weights(sum);
      softmax.expose_empty_rows();
    }
    return raises;
  }
  GIWA_DEVICE void find_weights(float (&sum)[row_slots]) {
    auto p_of_tile = scores;
    softmax.weigh(p_of_tile, sum);
    to_operand<operand>(p_of_tile, weights);
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i)
      s.p[i][thread] = {weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3]};
  }
  GIWA_DEVICE void hand_over(bool raises, bool is_strange) {
    if (lane == 0) s.news[warp] = (raises ? news::raised : 0) | (is_strange ? news::scrubbed : 0);
    arch::barrier_arrive(Types::barrier_of(barrier::p, warp), 64);
  }
};

/// The warpgroup that takes P, and adds P V of the other columns.
template <class Types, class Mask, class Score, class Block>
struct latent_wide_follower : latent_wide_output<Types, Mask, Score, Block, 1> {
  using base = latent_wide_output<Types, Mask, Score, Block, 1>;
  using base::block, base::p, base::s, base::lane, base::o, base::thread, base::warp, base::row_slots, base::sync;
  using typename base::params, typename base::shared_storage, typename base::barrier, typename base::map;
  using news = typename Types::news;
  using leaf_tile = latent_wide_tile<Types>;

  uint32 weights[Types::leaf_keys / 4];
  uint32 turn = 0;
  // Whether the last parts of a tile are added when S of the next tile is complete. Where only one tile of rows reads the keys, the memory
  // is the limit and not the tensor cores, and these parts are better released at once: the next keys come into them.
  const bool adds_late = p.splits.row_tiles != 1;

  GIWA_DEVICE latent_wide_follower(const Block& b, const params& parameters, shared_storage& storage)
      : base(b, parameters, storage) {}

  GIWA_DEVICE void sum_leaf(const few_rows_work_tile& work, const packed_rows& rows, int leaf, float (&m)[row_slots],
                            float (&l)[row_slots]) {
    for (latent_wide_walk<Types, Block> tiles(block, p, rows, leaf); tiles.exists();) {
      const leaf_tile at{tiles.tile, tiles.visible, turn++};
      tiles.next();
      const bool is_strange = take_weights(), more = tiles.exists();
      const auto meet = [&] { arch::barrier_sync(Types::barrier_of(barrier::met, warp), 64); };
      add_parts<Types::follower_part, Types::parts - Types::late_parts>(at);
      if (more && !is_strange && adds_late) meet();
      if constexpr (Types::late_parts > 0) add_parts<Types::parts - Types::late_parts, Types::parts>(at);
      if (more && !is_strange && !adds_late) meet();
      if (!is_strange) continue;
      this->add_nonfinite(work, rows, at.tile);
      if (more) meet();
    }
    sync();
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const float2 sums = s.sums[leaf & 1][map::row(thread, r)];
      m[r] = sums.x, l[r] = sums.y;
    }
  }

 private:
  /// O += P V of the columns of some parts, which are released one after the other.
  template <int Begin, int End>
  GIWA_DEVICE void add_parts(const leaf_tile& at) {
    this->fence_values(weights);
    multiply_parts<Begin, End>(at);
    release_parts<Begin, End>(at);
  }
  template <int Part, int End>
  GIWA_DEVICE void multiply_parts(const leaf_tile& at) {
    constexpr int width = Types::part_columns;
    if constexpr (Part < End) {
      multiply<descriptors::in_turn>(columns_of<(Part - Types::follower_part) * width, width>(o), weights,
                                     s.k.tile[at.stage()], true, 64 * Types::slab_of(Part));
      arch::wgmma_commit();
      multiply_parts<Part + 1, End>(at);
    }
  }
  template <int Part, int End>
  GIWA_DEVICE void release_parts(const leaf_tile& at) {
    if constexpr (Part < End) {
      arch::wgmma_wait<End - 1 - Part>();
      arch::fence_operand(o.value);
      this->release(s.k.empty[at.stage()][Part]);
      release_parts<Part + 1, End>(at);
    }
  }
  /// Takes P, and scales O if m was raised. Returns whether values were scrubbed.
  GIWA_DEVICE bool take_weights() {
    arch::barrier_sync(Types::barrier_of(barrier::p, warp), 64);
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint4 x = s.p[i][thread];
      weights[4 * i] = x.x, weights[4 * i + 1] = x.y, weights[4 * i + 2] = x.z, weights[4 * i + 3] = x.w;
    }
    const int all = s.news[warp];
    if (block.any((all & news::raised) != 0)) {
      const float factor[row_slots] = {s.factor[map::row(thread, 0)], s.factor[map::row(thread, 1)]};
      this->scale(factor);
    }
    return block.any((all & news::scrubbed) != 0);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
