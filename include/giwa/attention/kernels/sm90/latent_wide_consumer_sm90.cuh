// SPDX-License-Identifier: MIT
// S, P and O of the kernel for many latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_CONSUMER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_CONSUMER_SM90_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/sm90/latent_wide_types_sm90.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/sums/finish_rows.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A warpgroup, which has half of the columns of O. The two have the scores of the tiles of a leaf in turn: one computes S and P, and
/// hands P over; both add P V of their columns. Both have the same m of each row, and each has l of its own tiles.
template <class Types, class Mask, class Score, class Block>
struct latent_wide_consumer {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using operand = typename Types::operand;
  using output = typename Types::output;
  using barrier = typename Types::named_barrier;
  using score_map = warpgroup_map<Types::leaf_keys>;
  using map = typename Types::output_map;
  using news = typename Types::news;
  static constexpr int threads = Types::output_threads, row_slots = map::rows, half = Types::half;
  static constexpr int slack = 6;  // of m, as in attention_forward
  static_assert(row_slots == 2 && score_map::rows == row_slots);

  /// A tile that one of the two has the scores of.
  struct place {
    int tile;
    tile_keep visible;
    uint32 turn;
    GIWA_DEVICE int stage() const { return static_cast<int>(turn % Types::stages); }
    GIWA_DEVICE uint32 phase() const { return turn / Types::stages & 1; }
    GIWA_DEVICE int first_key() const { return tile * Types::leaf_keys; }
  };

  const Block& block;
  const params& p;
  const typename Types::call_params& call;
  shared_storage& s;
  const int lane, index, thread, warp;  // index: of the warpgroup; thread, warp: in it
  const score_steps<Mask, Score> steps;
  warpgroup_tile<Types::leaf_keys> scores;  // (rows, keys)
  warpgroup_tile<half> o;                   // (rows, columns)
  uint32 weights[score_map::registers / 2];
  online_softmax<score_map, 0, slack> softmax;
  uint32 turn = 0;

  GIWA_DEVICE latent_wide_consumer(const Block& b, const params& parameters, shared_storage& storage)
      : block(b),
        p(parameters),
        call(parameters.splits.call),
        s(storage),
        lane(b.lane()),
        index(b.any(b.warp() >= 4) ? 1 : 0),  // the vote tells the compiler that a warp's threads agree
        thread(b.rank() % 128),
        warp(b.warp() % 4),
        steps{call.mask, call.score, call.scale} {}

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
        finish_leaf(leaf, m, l);
        const rows_ref<map> own{m, l, o.value};
        if (work.has_beginning()) {
          if (leaf > work.begin) merge_rows<map>(earlier, {m, l, o.value}, own);
          if (leaf + 1 < work.end) {
            earlier.save(m, l, o.value);
            continue;
          }
          if (work.has_end()) {
            store_output(work, rows, m, l);
            continue;
          }
        }
        store_partial(rows, m, l, to);
        to += partial_slot::floats(p.splits.shape.rows, Types::columns);
      }
    }
  }

 private:
  GIWA_DEVICE void sync() const { arch::barrier_sync(barrier::outputs, threads); }
  GIWA_DEVICE void sync_one() const { arch::barrier_sync(Types::barrier_of(barrier::of_one, index), 128); }
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
    latent_wide_walk<Types> tiles(call, rows, leaf);
    const auto take = [&] {
      const place at{tiles.tile, tiles.visible, turn++};
      tiles.next();
      return at;
    };
    if (index == 0 && tiles.exists()) {
      const place own = take();
      begin_scores(own);
      end_scores(own);
      add_own(work, rows, own);
    }
    while (tiles.exists()) {
      const place other = take();
      LAT_STAMP(index, other.turn, 0);
      const bool is_strange = take_weights();
      LAT_STAMP(index, other.turn, 1);
      multiply_values(other);
      if (!tiles.exists()) {
        arch::wgmma_wait<0>();
        release_values(work, rows, other, is_strange);
        break;
      }
      const place own = take();
#if LAT_ORDER == 0
      begin_scores(own);
      arch::wgmma_wait<1>();
      LAT_STAMP(index, other.turn, 2);
      release_values(work, rows, other, is_strange);
#else
      arch::wgmma_wait<0>();
      LAT_STAMP(index, other.turn, 2);
      release_values(work, rows, other, is_strange);
      begin_scores(own);
#endif
      end_scores(own);
      add_own(work, rows, own);
    }
  }

  // --- Products
  GIWA_DEVICE void wait_for_keys(const place& at, int part) const {
    s.k.full[at.stage()][part].wait(at.phase());
    if (p.copies != key_copies::boxes) arch::fence_async_proxy();  // wgmma may then read what others have written
  }
  /// S, with the first parts of a tile's columns, and with the others; then it is complete.
  ///@{
  GIWA_DEVICE void begin_scores(const place& at) {
    arch::fence_operand(scores.value);
    multiply_part<0>(at);
    if constexpr (Types::parts > 2) multiply_part<1>(at);
    arch::wgmma_commit();
  }
  GIWA_DEVICE void end_scores(const place& at) {
    if constexpr (Types::parts > 2) multiply_part<2>(at);
    multiply_part<Types::parts - 1>(at);
    arch::wgmma_commit();
    arch::wgmma_wait<0>();
    arch::fence_operand(scores.value);
  }
  template <int Part>
  GIWA_DEVICE void multiply_part(const place& at) {
    constexpr int begin = 64 * Types::slab_of(Part), depth = 64 * Types::slab_of(Part + 1) - begin;
    wait_for_keys(at, Part);
    if (Part == 0) { LAT_STAMP(index, at.turn, 3); }
    if (Part == Types::parts - 1) { LAT_STAMP(index, at.turn, 4); }
    arch::wgmma_fence();
    multiply<depth, descriptors::in_turn>(scores, s.q, 0, transposed(s.k.tile[at.stage()]), Part > 0, begin, begin);
  }
  ///@}
  /// O += P V of this warpgroup's columns.
  GIWA_DEVICE void multiply_values(const place& at) {
    arch::fence_operand(o.value);
    arch::fence_operand(weights);
    arch::wgmma_fence();
    multiply<descriptors::in_turn>(o, weights, s.k.tile[at.stage()], true, half * index);
    arch::wgmma_commit();
  }
  /// After O += P V.
  GIWA_DEVICE void release_values(const few_rows_work_tile& work, const packed_rows& rows, const place& at,
                                  bool is_strange) {
    arch::fence_operand(o.value);
    block.sync_warp();
    if (lane == 0) s.k.empty[at.stage()][index].arrive();
    if (is_strange) add_nonfinite(work, rows, at);
  }

  /// P of this warpgroup's tile, whose S is complete, and O += P V.
  GIWA_DEVICE void add_own(const few_rows_work_tile& work, const packed_rows& rows, const place& at) {
    LAT_STAMP(index, at.turn, 5);
    steps.apply(thread, scores, rows, at.visible, rows_are_packed{at.first_key()});
    const bool is_strange = at.visible == tile_keep::some && scrub(s.k.tile[at.stage()]);
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
    LAT_STAMP(index, at.turn, 6);
    multiply_values(at);
    softmax.add(sum);
    arch::wgmma_wait<0>();
    LAT_STAMP(index, at.turn, 7);
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

  // --- NaN and infinity
  /// Replaces NaN and infinity in a tile by zeros, because 0 times such a value is NaN; returns whether there were any. For tiles of
  /// which some row does not see every key, when S is complete.
  template <class Tile>
  GIWA_DEVICE bool scrub(Tile& tile) const {
    int& found = s.has_nonfinite[index];
    if (thread == 0) found = 0;
    sync_one();
    if (block.any(has_nonfinite<4>(thread, tile)) && lane == 0) found = 1;
    sync_one();
    if (found == 0) return false;
    constexpr int run = Tile::placement::run, runs = Tile::columns / run;
    for (int i = thread; i < Tile::rows * runs; i += 128) {
      operand* const elements = &tile(i / runs, i % runs * run);
      for (int j = 0; j < run; ++j)
        if (is_nonfinite(elements[j])) elements[j] = convert<operand>{}(0.f);
    }
    arch::fence_async_proxy();
    sync_one();
    return true;
  }
  /// Adds what scrub() removed, times P, to the rows that see it: infinity, or NaN where P is 0. Both warpgroups call it. It is
  /// written for small code: it is in the loop more than once.
  GIWA_DEVICE void add_nonfinite(const few_rows_work_tile& work, const packed_rows& rows, const place& at) {
    const int first = at.first_key(), left = rows.keys - first, first_column = map::column(thread, 0);
    const int keys = left < Types::leaf_keys ? left : Types::leaf_keys;
#pragma unroll 1
    for (int i = 0; i < keys * (half / 32); ++i) {
      const int key = i / (half / 32), begin = i % (half / 32) * 32;
      const cache_row from = call.row_of(work.sequence, first + key);
      operand of_lane = convert<operand>{}(0.f);
      if (from.element >= 0)
        of_lane = call.views.cache.v(from.element, from.row, work.head, half * index + begin + lane);
      const float value = convert<float>{}(of_lane);
      for (uint32 found = block.ballot(is_nonfinite(of_lane)); found != 0; found &= found - 1) {
        const int column = begin + __ffs(static_cast<int>(found)) - 1;
        const float x = block.shuffle(value, column - begin);
        float weight[row_slots];
        bool sees[row_slots];
        GIWA_UNROLL
        for (int r = 0; r < row_slots; ++r) {
          const int row = map::row(thread, r);
          sees[r] = steps.keeps(rows, row, first + key), weight[r] = weight_of(row, key);
        }
        GIWA_UNROLL
        for (int j = 0; j < o.registers; ++j)
          if (map::column(0, j) == column - first_column && sees[map::slot(j)])
            o.value[j] = fused_multiply_add(weight[map::slot(j)], x, o.value[j]);
      }
    }
    sync();  // P may be overwritten
  }
  GIWA_DEVICE float weight_of(int row, int key) const {
    const int word = key / 8 * 2 + row % 16 / 8, of_thread = row / 16 * 32 + row % 8 * 4 + key % 8 / 2;
    const auto* const two = reinterpret_cast<const operand*>(&s.p[word / 4][of_thread]) + word % 4 * 2;
    return convert<float>{}(two[key % 2]);
  }

  // --- Ends
  /// m, in units of log2, and l of all tiles of a leaf. Afterwards both warpgroups have computed all products of it.
  GIWA_DEVICE void finish_leaf(int leaf, float (&m)[row_slots], float (&l)[row_slots]) {
    softmax.finish(block);
    auto& sums = s.l[leaf & 1];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (lane % 4 == 0) sums[index][map::row(thread, r)] = softmax.l[r];
    sync();
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const int row = map::row(thread, r);
      l[r] = sums[0][row] + sums[1][row];
      const float largest = softmax.m[r];
      m[r] = largest == -infinity_of<float> ? largest : reference_of(largest, steps.scale_log2(), 0);
    }
  }
  /// Writes a partial to the workspace.
  GIWA_DEVICE void store_partial(const packed_rows& rows, const float (&m)[row_slots], const float (&l)[row_slots],
                                 float* to) const {
    const partial_slot slot{p.splits.shape.rows, Types::columns};
    GIWA_UNROLL
    for (int i = 0; i < o.registers; i += 2)
      if (const int row = map::row(thread, map::slot(i)); row < rows.rows)
        *reinterpret_cast<float2*>(to + (slot.output(row) + half * index + map::column(thread, i))) = {o.value[i],
                                                                                                       o.value[i + 1]};
    if (index != 0 || lane % 4 != 0) return;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(thread, r); row < rows.rows)
        *reinterpret_cast<float2*>(to + slot.sums(row)) = {m[r], l[r]};
  }
  /// Normalizes and writes rows that were not divided.
  GIWA_DEVICE void store_output(const few_rows_work_tile& work, const packed_rows& rows, const float (&m)[row_slots],
                                const float (&l)[row_slots]) const {
    const cached_sequence& q = work.sequence;
    float lse[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const int row = map::row(thread, r);
      if (row >= rows.rows) continue;
      const cached_row_end<output> to(call, q, rows.head(row), rows.query(row));
      const finished_softmax<float> end = to.finish(m[r], l[r]);
      lse[r] = end.lse;
      GIWA_UNROLL
      for (int i = 0; i < o.registers; i += 2) {
        const float sums[2] = {o.value[i], o.value[i + 1]};
        if (map::slot(i) == r) to.store(half * index + map::column(thread, i), sums, end);
      }
    }
    if (call.lse.data() == nullptr) return;
    if (call.has_prior()) sync();  // the prior's lse may be the one that is written: all warps have read it
    if (index != 0 || lane % 4 != 0) return;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(thread, r); row < rows.rows)
        call.lse(q.q_batch, rows.head(row), q.first_query_row + rows.query(row)) = lse[r];
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
