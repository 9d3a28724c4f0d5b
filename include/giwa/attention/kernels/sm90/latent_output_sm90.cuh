// SPDX-License-Identifier: MIT
// O and the ends of latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_OUTPUT_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_OUTPUT_SM90_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/sm90/latent_fold_sm90.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/sums/finish_rows.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Each warpgroup has half of the columns of O. They compute one leaf after the other, each from nothing, and fold the results.
template <class Types, class Mask, class Score, class Block>
struct latent_output {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using element = typename Types::element;
  using output = typename Types::output;
  using barrier = typename Types::named_barrier;
  using map = typename Types::output_map;
  using state = typename Types::state;
  using sums = warp_sums<Types::rows>;
  // With rows of bytes a thread has 128 registers: those of the nodes of 4 and 16 leaves, and of the conversion.
  static constexpr bool has_node_in_memory = Types::has_format;
  using node =
      fold_node<state, sums,
                stdlib::conditional_t<has_node_in_memory, numbers_of_node<map::registers, Types::output_threads>,
                                      float[map::registers]>>;
  using last_node =
      fold_node<state, sums,
                stdlib::conditional_t<has_node_in_memory, numbers_of_node<map::registers, Types::output_threads>,
                                      column_of_threads<Types::output_threads>>>;
  using fold_type = leaf_fold<state, node, last_node>;  // the last node changes once in 64 leaves
  static constexpr int leaf_keys = Types::leaf_keys, stages = Types::stages, threads = Types::output_threads;
  static constexpr int row_slots = map::rows, slabs = Types::slabs;
  static constexpr int threads_of_both = Types::score_threads + Types::output_threads;

  const Block& block;
  const params& p;
  const typename Types::call_params& call;
  shared_storage& s;
  const int lane, warpgroup, thread;  // thread: of the warpgroup
  const int first_column;
  const score_steps<Mask, Score> steps;

  GIWA_DEVICE latent_output(const Block& b, const params& parameters, shared_storage& storage)
      : block(b),
        p(parameters),
        call(parameters.splits.call),
        s(storage),
        lane(b.lane()),
        warpgroup(b.warp() / 4),
        thread(b.rank() % 128),
        first_column(Types::has_format ? Types::columns_of_warp * b.warp() : 64 * slabs * warpgroup),
        steps{call.mask, call.score, call.scale} {}

  /// Computes all work tiles of a split.
  GIWA_DEVICE void run(work_tile_reader<Block> reader, int64 split, int column) {
    for (int buffer = 0; buffer < 2; ++buffer) release_p(buffer);
    fold_type fold;
    GIWA_UNROLL
    for (int l = 0; l + 1 < fold_type::levels; ++l)
      fold.node[l].sums = &s.sums_before[l][block.warp()], fold.node[l].lane = lane;
    fold.last().sums = &s.sums_before[fold_type::levels - 1][block.warp()], fold.last().lane = lane;
    [[maybe_unused]] float in_memory[map::registers];
    if constexpr (has_node_in_memory) {
      fold.node[2].o.use_shared(s.o_before, block.rank());
      fold.last().o.use_local(in_memory);
    } else {
      fold.last().o = {s.o_before, block.rank()};
    }
    for (uint32 turn = 0; reader.has_work(); reader.next()) {
      const few_rows_work_tile& work = reader.work();
      const packed_rows rows = rows_of(call, work, p.splits.group, Types::rows);
      fold.reset();
      const int begin = work.fold_begin();
      const bool is_whole = work.has_beginning() && work.has_end();
      float* to = p.splits.slot_of(split, column, work.has_beginning(), 0);
      const auto hand_on = [&](const state& x) {
        store_partial(x, rows, to);
        to += partial_slot::floats(p.splits.shape.rows, Types::columns);
      };
      typename Types::visible_leaves leaves;
      const int end = work.end;
      for (int leaf = work.begin; leaf < end; ++leaf) {
        state x;
        const tile_keep visible = leaves.of(block, call, rows, leaf);
        if constexpr (Types::has_format) {  // a leaf that is handed on is the only one of its node
          if (visible != tile_keep::none) {
            compute(work, rows, leaf, visible, turn++, fold.node[0]);
          } else {
            x.reset();
            fold.node[0].merge(x);
          }
          constexpr int children = fold_levels::span(1);
          const bool is_inner = leaf / children * children >= begin;
          if (is_inner && leaf % children != children - 1) continue;
          x = fold.node[0];
          fold.node[0].reset();
          if (is_inner)
            fold.push(1, leaf / children, x, begin, hand_on);
          else
            hand_on(x);
        } else {
          if (visible != tile_keep::none)
            compute(work, rows, leaf, visible, turn++, x);
          else
            x.reset();
          fold.push(0, leaf, x, begin, hand_on);
        }
      }
      if (is_whole) {
        store_output(work, rows, fold.finish());
      } else {
        const uint32 unfinished = split_partials(begin, work.end).unfinished;
#pragma unroll 1
        for (int l = fold_levels::count - 1; l >= 0; --l)
          if ((unfinished >> l & 1) != 0) hand_on(fold.unfinished(l));
      }
    }
  }

 private:
  GIWA_DEVICE void sync() const { arch::barrier_sync(barrier::outputs, threads); }
  GIWA_DEVICE void release_p(int buffer) const {
    arch::barrier_arrive(Types::barrier_of(barrier::p_empty, buffer), threads_of_both);
  }

  /// Computes the state of one leaf, or of rows of bytes merges it into a node of the fold.
  template <class To>
  GIWA_DEVICE void compute(const few_rows_work_tile& work, const packed_rows& rows, int leaf, tile_keep visible,
                           uint32 turn, To& to) const {
    const int stage = static_cast<int>(turn % stages), buffer = static_cast<int>(turn & 1);
    // For rows of bytes the score warps have waited: the barrier orders this after the copies, which they have seen complete.
    if constexpr (!Types::has_format) Types::wait_for_keys(p, s, turn);
    arch::barrier_sync(Types::barrier_of(barrier::p_full, buffer), threads_of_both);  // S of the leaf is done too
    const bool scrubbed = Types::scrubs && visible == tile_keep::some && scrub(rows, leaf, stage, buffer);
    if constexpr (Types::has_format)
      merge_codes(to, stage, buffer);
    else
      multiply_values(to, stage, buffer);
    block.sync_warp();
    if (lane == 0) s.k.empty[stage].arrive();
    if constexpr (!Types::has_format) read_sums(buffer, to.m, to.l);
    if (scrubbed) add_nonfinite(work, rows, leaf, buffer, to.o);
    release_p(buffer);
  }

  /// Computes O^T of a leaf, a slab of 64 columns of V at a time.
  GIWA_DEVICE void multiply_values(state& x, int stage, int buffer) const {
    warpgroup_tile<Types::rows> o[slabs];
    GIWA_UNROLL
    for (int i = 0; i < slabs; ++i) arch::fence_operand(o[i].value);
    arch::wgmma_fence();
    GIWA_UNROLL
    for (int i = 0; i < slabs; ++i)
      multiply<0>(o[i], transposed(s.k.tile[stage]), first_column + 64 * i, transposed(s.p[buffer]), false);
    arch::wgmma_commit();
    arch::wgmma_wait<0>();
    GIWA_UNROLL
    for (int i = 0; i < slabs; ++i) arch::fence_operand(o[i].value);
    GIWA_UNROLL
    for (int i = 0; i < x.o.registers; ++i) x.o.value[i] = o[i / o[0].registers].value[i % o[0].registers];
  }

  /// The same of rows of bytes, whose P was multiplied by their scales, merged into a node: m and l first, and then O of 16 columns after
  /// the other, so that O of the leaf needs few registers.
  template <class To>
  GIWA_DEVICE void merge_codes(To& to, int stage, int buffer) const {
    const auto& weights = s.p[buffer];
    const int group = first_column / rows_656::group;
    float m[row_slots], l[row_slots], factor[row_slots], of_earlier[row_slots], of_later[row_slots];
    read_sums(buffer, m, l);
    to.merge_rows(m, l, of_earlier, of_later);
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) factor[r] = weights.factor[group][map::row(lane, r)];
    GIWA_UNROLL
    for (int part = 0; part < map::shape::columns / 16; ++part) {
      register_tile<float, byte_map<Types::rows, 16, 1>> o;
      o.fill(0);
      detail::multiply_values(lane, o, weights.of[group], s.k.tile[stage].codes, first_column + 16 * part);
      GIWA_UNROLL
      for (int i = 0; i < o.registers; ++i) {
        const int all = o.registers * part + i, r = map::slot(all);
        to.o[all] = merge_sums(to.o[all], of_earlier[r], o.value[i] * factor[r], of_later[r]);
      }
    }
  }

  GIWA_DEVICE void read_sums(int buffer, float (&m)[row_slots], float (&l)[row_slots]) const {
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const int row = map::row(lane, r);
      const float4 sum = *reinterpret_cast<const float4*>(s.sums[buffer][row]);
      m[r] = s.m[buffer][row];
      l[r] = ((sum.x + sum.y) + sum.z) + sum.w;
    }
  }

  /// For leaves of which some row does not see every key. All output warps call it, after S of the leaf.
  GIWA_DEVICE bool scrub(const packed_rows& rows, int leaf, int stage, int buffer) const {
    auto& values = [&]() -> auto& {
      if constexpr (Types::has_format)
        return s.k.tile[stage].codes;
      else
        return s.k.tile[stage];
    }();
    return scrub_keys<Types::output_warps>(block, block.rank(), values, rows.keys - leaf * leaf_keys,
                                           s.has_nonfinite[buffer], [&] { arch::fence_async_proxy(), sync(); });
  }
  /// Adds what scrub() removed, times P, to the rows that see it: infinity, or NaN where P is 0.
  template <class Outputs>
  GIWA_DEVICE void add_nonfinite(const few_rows_work_tile& work, const packed_rows& rows, int leaf, int buffer,
                                 Outputs& o) const {
    const auto& v = call.views.cache.v;
    const int first = leaf * leaf_keys, end = first + leaf_keys < rows.keys ? first + leaf_keys : rows.keys;
#pragma unroll 1
    for (int key = first; key < end; ++key) {
      const cache_row from = call.row_of(work.sequence, key);
      if (from.element < 0) continue;
      if constexpr (Types::has_format) {
        add_nan_codes(&v(from.element, from.row, work.head, first_column), rows, key, o);
      } else {
        o.for_each(thread, [&](float& sum, int row, int column) {
          const element value = value_of<element>(v, from, work.head, first_column + column);
          if (is_nonfinite(value) && steps.keeps(rows, row, key))
            sum = fused_multiply_add(convert<float>{}(s.p[buffer](row, key - first)), convert<float>{}(value), sum);
        });
      }
    }
  }

  template <class Code, class Outputs>
  GIWA_DEVICE void add_nan_codes(const Code* codes, const packed_rows& rows, int key, Outputs& o) const {
    bool sees[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) sees[r] = steps.keeps(rows, map::row(lane, r), key);
    GIWA_UNROLL
    for (int i = 0; i < map::registers; ++i)
      if ((codes[map::column(lane, i)].byte & 0x7f) == 0x7f && sees[map::slot(i)]) o[i] = __uint_as_float(0x7fffffff);
  }

  /// Writes a partial to the workspace.
  GIWA_DEVICE void store_partial(const state& x, const packed_rows& rows, float* to) const {
    const partial_slot slot{p.splits.shape.rows, Types::columns};
    GIWA_UNROLL
    for (int i = 0; i < x.o.registers; ++i) {
      const int row = map::row(thread, map::slot(i));
      float* const at = to + (slot.output(row) + first_column + map::column(thread, i));
      const auto& o = x.o.value;
      if constexpr (Types::has_format) {  // 4 columns next to each other are two runs of registers
        static_assert(map::column(0, 4) == map::column(0, 0) + 2 && map::slot(4) == map::slot(0));
        if ((i % 8 == 0 || i % 8 == 2) && row < rows.rows)
          *reinterpret_cast<float4*>(at) = {o[i], o[i + 1], o[i + 4], o[i + 5]};
      } else if (row < rows.rows) {
        *at = o[i];
      }
    }
    if (!is_first_of_rows<map>(block.rank())) return;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(lane, r); row < rows.rows)
        *reinterpret_cast<float2*>(to + slot.sums(row)) = {x.m[r], x.l[r]};
  }

  /// Normalizes and writes rows that were not divided. They go through the shared memory of the last node, 16 bytes of a row to a thread:
  /// this code is executed once, so its length counts (128 x 1024, 16 heads: 50.3 us instead of 52.2 from registers, H200, 2026-11-30).
  GIWA_DEVICE void store_output(const few_rows_work_tile& work, const packed_rows& rows, const state& x) const {
    constexpr int count = 16 / static_cast<int>(sizeof(output)), chunks = Types::columns / count;
    sync();  // all threads have read the node
    GIWA_UNROLL
    for (int i = 0; i < map::registers; ++i)
      s.o_of_rows[map::row(thread, map::slot(i))][first_column + map::column(thread, i)] = x.o.value[i];
    if (const int row = block.rank(); row < rows.rows) {
      const sums& of_rows = s.sums_before[fold_type::levels - 1][0];  // of this warp
      s.row[row].to = {call, work.sequence, rows.head(row), rows.query(row)};
      s.row[row].end = s.row[row].to.finish(of_rows.m[row], of_rows.l[row]);
    }
    sync();
#pragma unroll 1
    for (int i = block.rank(); i < rows.rows * chunks; i += threads) {
      const int row = i / chunks, column = i % chunks * count;
      float of_thread[count];
      GIWA_UNROLL
      for (int j = 0; j < count; j += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&s.o_of_rows[row][column + j]);
        of_thread[j] = four.x, of_thread[j + 1] = four.y, of_thread[j + 2] = four.z, of_thread[j + 3] = four.w;
      }
      s.row[row].store(column, of_thread, Types::columns);
    }
    // The prior's lse may be the one that is written: all of it was read before the barrier.
    if (const int row = block.rank(); call.lse.data() != nullptr && row < rows.rows)
      *s.row[row].to.lse = s.row[row].end.lse;
    sync();  // the next work tile has the node
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
