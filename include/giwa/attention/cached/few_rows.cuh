// SPDX-License-Identifier: MIT
// Attention of up to 32 packed rows to a cache: decoding, at the speed of the memory.
#ifndef GIWA_ATTENTION_CACHED_FEW_ROWS_CUH
#define GIWA_ATTENTION_CACHED_FEW_ROWS_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/cached/few_rows_loader.cuh>
#include <giwa/attention/forward/nonfinite.cuh>
#include <giwa/attention/forward/score_steps.cuh>
#include <giwa/grid/op.hpp>
#include <giwa/tile/mma_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The consumers of the kernel for few rows: eight warps that compute one leaf after the other, each from nothing, and
/// fold the results. In S = Q K^T a warp has 16 keys of the leaf, in O = P V it has columns; maxima, sums and P go
/// through shared memory. A leaf takes about a quarter of the time that its bytes take, so its steps need no overlap.
template <class Types, class Mask, class Score, class Block>
struct few_rows_consumer {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using element = typename Types::element;
  using output = typename Types::output;
  using barrier = typename Types::named_barrier;
  static constexpr int leaf_keys = Types::leaf_keys, stages = Types::stages, threads = 32 * Types::consumers;
  static constexpr int score_warps = Types::score_warps;
  using scores_tile = warp_tile<Types::rows, 16>;
  using output_tile = warp_tile<Types::rows, Types::warp_columns>;
  static constexpr int row_slots = output_tile::map::rows;

  /// The softmax state of the rows over some keys: m in units of log2, l, and this warp's columns of O, not normalized.
  struct state {
    float m[row_slots], l[row_slots];
    output_tile o;

    GIWA_DEVICE void reset() {
      GIWA_UNROLL
      for (int r = 0; r < row_slots; ++r) m[r] = -infinity_of<float>, l[r] = 0;
      o.fill(0);
    }
    /// Adds the state of later keys. Merging with a state of no keys is exact.
    GIWA_DEVICE void merge(const state& later) {
      float own[row_slots], other[row_slots];
      GIWA_UNROLL
      for (int r = 0; r < row_slots; ++r) {
        m[r] = merge_maxima(m[r], later.m[r], own[r], other[r]);
        l[r] = fused_multiply_add(l[r], own[r], later.l[r] * other[r]);
      }
      GIWA_UNROLL
      for (int i = 0; i < o.registers; ++i) {
        const int r = output_tile::map::slot(i);
        o.value[i] = fused_multiply_add(o.value[i], own[r], later.o.value[i] * other[r]);
      }
    }
  };

  const Block& block;
  const params& p;
  const typename Types::call_params& call;
  shared_storage& s;
  const int lane, warp;
  const score_steps<Mask, Score> steps;
  uint32 turn = 0;  // leaves computed

  GIWA_DEVICE few_rows_consumer(const Block& b, const params& parameters, shared_storage& storage)
      : block(b),
        p(parameters),
        call(parameters.runs.call),
        s(storage),
        lane(b.lane()),
        warp(b.warp()),
        steps{call.mask, call.score, call.scale} {}

  /// Computes all items of a walk.
  template <class Walk>
  GIWA_DEVICE void run(Walk& walk, int64 run, int column) {
    while (walk.next()) {
      const run_item& item = walk.item();
      const packed_rows rows = rows_of(call, item, p.runs.group, Types::rows);
      load_q(item, rows);
      leaf_fold<state> fold;
      fold.reset();
      const int begin = item.fold_begin();
      int handed_on = 0;
      const auto hand_on = [&](const state& x) {
        store_state(x, rows, p.runs.state_of(run, column, item.has_beginning(), handed_on++));
      };
      for (int leaf = item.begin; leaf < item.end; ++leaf) {
        state x;
        x.reset();
        const tile_keep keep = Types::keep_of(call, rows, leaf);
        if (keep != tile_keep::none) compute(item, rows, leaf, keep, x);
        if (fold.push(0, leaf, x, begin)) hand_on(x);
      }
      if (item.has_beginning() && item.has_end()) {
        store_output(item, rows, fold.finish());
      } else {
        const run_states states(begin, item.end);
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
        for (int l = fold_levels::count - 1; l >= 0; --l)
          if (states.unfinished[l]) hand_on(fold.at(l));
      }
    }
  }

 private:
  GIWA_DEVICE void sync() const { arch::barrier_sync(barrier::consumers, threads); }

  /// Loads the packed rows of q. All warps have read the previous ones: they have met after that.
  GIWA_DEVICE void load_q(const run_item& item, const packed_rows& rows) const {
    constexpr int run = 16 / static_cast<int>(sizeof(element)), chunks = Types::q_tile::columns / run;
    const auto& q = call.views.q;
    const int width = static_cast<int>(q.extent(3));
    for (int i = block.rank(); i < Types::rows * chunks; i += threads) {
      const int row = i / chunks, column = i % chunks * run;
      const int count = row >= rows.rows || column >= width ? 0 : width - column < run ? width - column : run;
      element* const to = s.q.chunk(row, column);
      const element* from = nullptr;
      if (count > 0)
        from = &q(item.sequence.q_batch, item.sequence.first_query_row + rows.query(row), rows.head(row), column);
      if (count == run && p.q_aligned)
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      else
        for (int j = 0; j < run; ++j) to[j] = j < count ? from[j] : convert<element>{}(0.f);
    }
    sync();
  }

  /// Computes the state of one leaf.
  GIWA_DEVICE void compute(const run_item& item, const packed_rows& rows, int leaf, tile_keep keep, state& x) {
    const int stage = static_cast<int>(turn % stages), buffer = static_cast<int>(turn & 1);
    const uint32 phase = turn++ / stages & 1;
    scores_tile scores;
    s.k.full[stage].wait(phase);
    if (warp < score_warps) {
      scores.fill(0);
      giwa::multiply_add(lane, scores, s.q, 0, transposed(s.k.tile[stage]), 16 * warp);
    }
    release(s.k.empty[stage]);
    if (warp < score_warps) {
      const rows_are_packed at{leaf * leaf_keys + 16 * warp};
      steps.apply(lane, scores, rows, keep, at);
      share_maxima(scores, buffer);
    }
    if (block.rank() == 0) s.has_nonfinite[buffer] = 0;
    sync();
    read_maxima(buffer, x);
    if (warp < score_warps) share_p(scores, x, buffer);
    sync();
    read_sums(buffer, x);
    s.v.full[stage].wait(phase);
    const bool has_nonfinite = keep == tile_keep::some && scrub(s.v.tile[stage], buffer);
    if (warp < Types::output_warps)
      giwa::multiply_add(lane, x.o, s.p[buffer], 0, s.v.tile[stage], warp * Types::warp_columns);
    release(s.v.empty[stage]);
    if (has_nonfinite) add_nonfinite(item, rows, leaf, x);
  }

  GIWA_DEVICE void release(arch::mbarrier& empty) const {
    block.sync_warp();
    if (lane == 0) empty.arrive();
  }

  /// Writes the largest score of each row among this warp's keys.
  GIWA_DEVICE void share_maxima(const scores_tile& scores, int buffer) const {
    float largest[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) largest[r] = -infinity_of<float>;
    reduce_rows_of_thread(scores, largest, larger{});
    reduce_over_lanes<typename scores_tile::map>(block, largest, larger{});
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (lane % 4 == 0) s.maxima[buffer][scores_tile::map::row(lane, r)][warp] = largest[r];
  }
  /// Sets m of the leaf, rounded up in units of log2, so that no weight is above 1.
  GIWA_DEVICE void read_maxima(int buffer, state& x) const {
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const auto& of_row = s.maxima[buffer][scores_tile::map::row(lane, r)];
      float largest = of_row[0];
      GIWA_UNROLL
      for (int w = 1; w < score_warps; ++w) largest = larger_of(largest, of_row[w]);
      x.m[r] = largest == -infinity_of<float> ? largest : reference_of(largest, steps.scale_log2(), 0);
    }
  }
  /// Writes P and the sum of each row among this warp's keys.
  GIWA_DEVICE void share_p(scores_tile& scores, const state& x, int buffer) const {
    float shift[row_slots], sum[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) shift[r] = x.m[r] == -infinity_of<float> ? 0.f : x.m[r], sum[r] = 0;
    const float scale = steps.scale_log2();
    scores.transform_rows(
        shift, [&](float score, float reference) { return exp2_of(fused_multiply_add(score, scale, -reference)); });
    reduce_rows_of_thread(scores, sum, plus{});
    reduce_over_lanes<typename scores_tile::map>(block, sum, plus{});
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (lane % 4 == 0) s.sums[buffer][scores_tile::map::row(lane, r)][warp] = sum[r];
    GIWA_UNROLL
    for (int i = 0; i < scores.registers; i += 2) {
      const int row = scores_tile::map::row(lane, scores_tile::map::slot(i));
      const auto two = pack<element>(scores.value[i], scores.value[i + 1]);
      __builtin_memcpy(&s.p[buffer](row, 16 * warp + scores_tile::map::column(lane, i)), &two, sizeof two);
    }
  }
  GIWA_DEVICE void read_sums(int buffer, state& x) const {
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const auto& of_row = s.sums[buffer][scores_tile::map::row(lane, r)];
      x.l[r] = of_row[0];
      GIWA_UNROLL
      for (int w = 1; w < score_warps; ++w) x.l[r] += of_row[w];
    }
  }

  /// Replaces NaN and infinity in V by zeros, because 0 times such a value is NaN; returns whether there were any. For
  /// leaves of which some row does not see every key. All consumers call it.
  template <class Tile>
  GIWA_DEVICE bool scrub(Tile& tile, int buffer) const {
    if (block.any(has_nonfinite<Types::consumers>(block.rank(), tile)) && lane == 0) s.has_nonfinite[buffer] = 1;
    sync();
    if (s.has_nonfinite[buffer] == 0) return false;
    constexpr int run = Tile::placement::run, runs = Tile::columns / run;
    for (int i = block.rank(); i < Tile::rows * runs; i += threads) {
      element* const at = &tile(i / runs, i % runs * run);
      for (int j = 0; j < run; ++j)
        if (is_nonfinite(at[j])) at[j] = convert<element>{}(0.f);
    }
    arch::fence_async_proxy();
    sync();
    return true;
  }
  /// Adds what scrub() removed to the rows that see it.
  GIWA_DEVICE void add_nonfinite(const run_item& item, const packed_rows& rows, int leaf, state& x) const {
    if (warp >= Types::output_warps) return;
    const auto& v = call.views.cache.v;
    const int first = leaf * leaf_keys, end = first + leaf_keys < rows.keys ? first + leaf_keys : rows.keys;
    for (int key = first; key < end; ++key) {
      const cache_row from = call.row_of(item.sequence, key);
      if (from.element < 0) continue;
      x.o.for_each(lane, [&](float& sum, int row, int column) {
        column += warp * Types::warp_columns;
        if (column >= v.extent(3)) return;
        const element value = v(from.element, from.row, item.head, column);
        if (is_nonfinite(value) && steps.keeps(rows, row, key)) sum += convert<float>{}(value);
      });
    }
  }

  /// Writes a state to the workspace.
  GIWA_DEVICE void store_state(const state& x, const packed_rows& rows, float* to) const {
    using map = typename output_tile::map;
    float* const of_rows = to + int64{p.runs.shape.rows} * Types::columns;
    if (warp < Types::output_warps) {
      GIWA_UNROLL
      for (int i = 0; i < x.o.registers; i += 2) {
        const int row = map::row(lane, map::slot(i)), column = warp * Types::warp_columns + map::column(lane, i);
        if (row < rows.rows && column < Types::columns)
          *reinterpret_cast<float2*>(to + row * Types::columns + column) = {x.o.value[i], x.o.value[i + 1]};
      }
    }
    if (warp != 0 || lane % 4 != 0) return;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(lane, r); row < rows.rows)
        *reinterpret_cast<float2*>(of_rows + 2 * row) = {x.m[r], x.l[r]};
  }

  /// Normalizes and writes rows that were not divided.
  GIWA_DEVICE void store_output(const run_item& item, const packed_rows& rows, const state& x) const {
    using map = typename output_tile::map;
    const cached_sequence& q = item.sequence;
    float lse[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const int row = map::row(lane, r);
      if (row >= rows.rows) continue;
      const int query = rows.query(row), head = rows.head(row);
      const finished_softmax<float> end = finish_row(call, q, head, query, x.m[r], x.l[r]);
      lse[r] = end.lse;
      if (warp >= Types::output_warps) continue;
      GIWA_UNROLL
      for (int i = 0; i < x.o.registers; ++i)
        if (map::slot(i) == r)
          store_element(call, q, head, query, warp * Types::warp_columns + map::column(lane, i), x.o.value[i], end);
    }
    if (call.lse.data() == nullptr) return;
    if (call.has_prior()) sync();  // the prior's lse may be the one that is written: all warps have read it
    if (warp != 0 || lane % 4 != 0) return;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(lane, r); row < rows.rows)
        call.lse(q.q_batch, rows.head(row), q.first_query_row + rows.query(row)) = lse[r];
  }
};

/// Attention of up to Policy::rows packed rows a tile to a cache. A block computes one run (runs.hpp).
template <class T, class O, class Policy, class Mask, class Score>
struct few_rows_op {
  using types = few_rows_types<T, O, Policy, Mask, Score>;
  using params = typename types::params;
  using shared_storage = typename types::shared_storage;
  static constexpr int max_threads = types::max_threads, min_blocks = 1;

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    using loader = few_rows_loader<types>;
    const auto block = with_threads<max_threads>(plain_block);
    const int64 run = block.block_rank() / p.runs.shape.columns;
    const int column = static_cast<int>(block.block_rank() % p.runs.shape.columns);
    if (block.rank() == 0) {
      for (int i = 0; i < types::stages; ++i) {
        s.k.full[i].initialize(loader::arrivals(p)), s.k.empty[i].initialize(types::consumers);
        s.v.full[i].initialize(loader::arrivals(p)), s.v.empty[i].initialize(types::consumers);
      }
      arch::mbarriers_initialized();
    }
    find_run(block, p.runs.call, p.runs.shape, run, types::leaf_keys, types::rows, s.search);
    const int64 length = s.search.run_length(p.runs.shape), left = s.search.total - run * length;
    run_walk walk(p.runs.call, p.runs.shape, column, s.search.found, left < length ? left : length, types::leaf_keys,
                  types::rows);
    if (block.warp() < types::consumers)
      few_rows_consumer<types, Mask, Score, decltype(block)>(block, p, s).run(walk, run, column);
    else
      loader::run(block, block.warp() - types::consumers, p, s, walk);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
