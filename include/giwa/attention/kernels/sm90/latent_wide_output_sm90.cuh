// SPDX-License-Identifier: MIT
// O of many latent rows: work tiles, NaN, ends of leaves.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_OUTPUT_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_OUTPUT_SM90_CUH

#include <giwa/arch/l2_policy.hpp>
#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/sm90/latent_wide_types_sm90.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/attention/sums/row_tile_partials.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// O of a thread over earlier leaves, while later keys are summed: in the workspace if that has room, else in local memory. The L2 cache can
/// be told to evict lines of the workspace last: 128 x 64 x 8192 348 us, with its usual policy 353, in local memory 356 (H200, 2026-11-30).
///@{
template <class Map>
struct earlier_in_local_memory {
  local_partial<Map, 16>& sums;
  template <int Count>
  GIWA_DEVICE void read(int first, float (&o)[Count]) const {
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) o[i] = sums.o[first + i];
  }
  template <int Count>
  GIWA_DEVICE void write(int first, const float (&o)[Count]) const {
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) sums.o[first + i] = o[i];
  }
};
/// Four numbers of each thread of a warpgroup, then the next four. No other thread reads them.
struct earlier_in_workspace {
  float* of_thread;
  static constexpr int at_once = 4, threads = 128;
  template <int Count>
  GIWA_DEVICE void read(int first, float (&o)[Count]) const {
    GIWA_UNROLL
    for (int i = 0; i < Count; i += at_once)
      arch::load_with_policy(of_thread + (first + i) * threads, o + i, arch::l2_policy::evict_last);
  }
  template <int Count>
  GIWA_DEVICE void write(int first, const float (&o)[Count]) const {
    GIWA_UNROLL
    for (int i = 0; i < Count; i += at_once)
      arch::store_with_policy(of_thread + (first + i) * threads, o + i, arch::l2_policy::evict_last);
  }
};
///@}

/// The state of one of the two warpgroups, the scorer, Index 0, or the follower, 1.
template <class Types, class Mask, class Score, class Block, int Index>
struct latent_wide_output {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using operand = typename Types::operand;
  using output = typename Types::output;
  using barrier = typename Types::named_barrier;
  static constexpr int threads = Types::output_threads, index = Index,
                       first_column = Index == 0 ? 0 : Types::scorer_columns,
                       columns = Index == 0 ? Types::scorer_columns : Types::follower_columns;
  using map = warpgroup_map<columns>;
  using local_state = local_partial<map, 16>;
  static constexpr int row_slots = map::rows;
  static_assert(row_slots == 2);

  const Block& block;
  const params& p;
  const typename Types::call_params& call;
  shared_storage& s;
  const int lane, thread, warp;  // thread, warp: in the warpgroup
  const score_steps<Mask, Score> steps;
  warpgroup_tile<columns> o;  // (rows, columns)

  GIWA_DEVICE latent_wide_output(const Block& b, const params& parameters, shared_storage& storage)
      : block(b),
        p(parameters),
        call(parameters.splits.call),
        s(storage),
        lane(b.lane()),
        thread(b.rank() % 128),
        warp(b.warp() % 4),
        steps{call.mask, call.score, call.scale} {}

  GIWA_DEVICE void sync() const { arch::barrier_sync(barrier::outputs, threads); }

  /// Computes all work tiles of a split. sum_leaf() of `self`, which is this warpgroup, adds the products of a leaf to `o`.
  template <class Self>
  GIWA_DEVICE void run(Self& self, work_tile_reader<Block> reader, int64 split, int column) {
    local_state earlier;
    // Calls f with O of the earlier leaves. In the workspace it lies where a split that hands on one partial of its last work tile would
    // have the others of it.
    const auto with_earlier = [&](const auto& f) {
      if (p.sums_in_workspace)
        f(earlier_in_workspace{p.splits.slot_of(split, column, true, 1) +
                               (earlier_in_workspace::threads * first_column + 4 * thread)});
      else
        f(earlier_in_local_memory<map>{earlier});
    };
    for (; reader.has_work(); reader.next()) {
      const few_rows_work_tile& work = reader.work();
      const packed_rows rows = rows_of(call, work, p.splits.group, Types::rows);
      load_q(work, rows);
      float* to = p.splits.slot_of(split, column, work.has_beginning(), 0);
      for (int leaf = work.begin; leaf < work.end; ++leaf) {
        float m[row_slots], l[row_slots];
        o.fill(0);
        self.sum_leaf(work, rows, leaf, m, l);
        if (work.has_beginning()) {
          if (leaf + 1 < work.end) {
            with_earlier([&](const auto& before) {
              if (leaf > work.begin) return this->template merge_earlier<true>(before, earlier, m, l);
              GIWA_UNROLL
              for (int r = 0; r < row_slots; ++r) earlier.m[r] = m[r], earlier.l[r] = l[r];
              before.write(0, o.value);
            });
            continue;
          }
          if (leaf > work.begin)
            with_earlier([&](const auto& before) { this->template merge_earlier<false>(before, earlier, m, l); });
          if (work.has_end()) {
            store_output(work, rows, m, l, earlier);
            continue;
          }
        }
        store_partial(rows, m, l, to);
        to += partial_slot::floats(p.splits.shape.rows, Types::columns);
      }
    }
  }

  GIWA_DEVICE void load_q(const few_rows_work_tile& work, const packed_rows& rows) const {
    if constexpr (rotates_queries<Score>)
      load_rotated_rows<threads>(block.rank(), call, work, rows, Types::rows, p.q_aligned, s.q);
    else
      copy_packed_rows<Types, threads>(block.rank(), p, call, work, rows, s);
    arch::fence_async_proxy();
    sync();
  }

  // --- Products
  GIWA_DEVICE void fence_values(uint32 (&weights)[Types::leaf_keys / 4]) {
    arch::fence_operand(o.value);
    arch::fence_operand(weights);
    arch::wgmma_fence();
  }
  /// When O += P V is over.
  GIWA_DEVICE void release(arch::mbarrier& empty) {
    block.sync_warp();
    if (lane == 0) empty.arrive();
  }
  GIWA_DEVICE void scale(const float (&factor)[row_slots]) {
    o.transform_rows(factor, [](float x, float f) { return x * f; });
  }

  // --- NaN and infinity
  /// Adds what scrub() removed, times P, to the rows that see it: infinity, or NaN where P is 0. Both warpgroups call it. It is
  /// written for small code.
  GIWA_DEVICE void add_nonfinite(const few_rows_work_tile& work, const packed_rows& rows, int tile) {
    const int first = tile * Types::leaf_keys, left = rows.keys - first, of_thread = map::column(thread, 0);
    const int keys = left < Types::leaf_keys ? left : Types::leaf_keys;
#pragma unroll 1
    for (int i = 0; i < keys * (columns / 32); ++i) {
      const int key = i / (columns / 32), begin = i % (columns / 32) * 32;
      const cache_row from = call.row_of(work.sequence, first + key);
      operand of_lane = convert<operand>{}(0.f);
      if (from.element >= 0)
        of_lane = value_of<operand>(call.views.cache.v, from, work.head, first_column + begin + lane);
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
          if (map::column(0, j) == column - of_thread && sees[map::slot(j)])
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
  /// Merges the sums of a leaf with those of the earlier ones, into these or into the leaf's.
  template <bool IntoEarlier, class Before>
  GIWA_DEVICE void merge_earlier(const Before& before, local_state& earlier, float (&m)[row_slots],
                                 float (&l)[row_slots]) {
    float of_earlier[row_slots], of_later[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      float factor[2];
      m[r] = merge_maxima<2>({earlier.m[r], m[r]}, factor);
      of_earlier[r] = factor[0], of_later[r] = factor[1];
      l[r] = merge_sums(earlier.l[r], of_earlier[r], l[r], of_later[r]);
      if constexpr (IntoEarlier) earlier.m[r] = m[r], earlier.l[r] = l[r];
    }
    merge_step<IntoEarlier, 0>(before, of_earlier, of_later);
  }
  /// The numbers from `Begin` on: as many as there are registers for, which are more where numbers of o are no longer needed. Each step
  /// is behind a branch, over which ptxas moves nothing: without, it works out all products first, and spills a hundred of them. No step is
  /// left out, because a leaf has at least 64 keys.
  template <bool IntoEarlier, int Begin, class Before>
  GIWA_DEVICE void merge_step(const Before& before, const float (&of_earlier)[row_slots],
                              const float (&of_later)[row_slots]) {
    constexpr int left = map::registers - Begin;
    if constexpr (left > 0) {
      constexpr int spare = index == 0 ? 64 : 32, most = IntoEarlier ? Begin + spare : spare,
                    count = most < left ? most : left;
      static_assert(Begin / 4 < Types::leaf_keys);
      if (p.splits.leaf_keys > Begin / 4) {
        float x[count];
        before.read(Begin, x);
        GIWA_UNROLL
        for (int i = 0; i < count; ++i) {
          const int r = map::slot(Begin + i);
          x[i] = merge_sums(x[i], of_earlier[r], o.value[Begin + i], of_later[r]);
          if constexpr (!IntoEarlier) o.value[Begin + i] = x[i];
        }
        if constexpr (IntoEarlier) before.write(Begin, x);
      }
      merge_step<IntoEarlier, Begin + count>(before, of_earlier, of_later);
    }
  }
  /// Writes a partial to the workspace.
  GIWA_DEVICE void store_partial(const packed_rows& rows, const float (&m)[row_slots], const float (&l)[row_slots],
                                 float* to) const {
    const partial_slot slot{p.splits.shape.rows, Types::columns};
    using order = partial_columns<map>;
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const int row = map::row(thread, r);
      if (row >= rows.rows) continue;
      // The other addresses follow from one: 96 of them, which the compiler worked out early, were loaded from local memory, one after the other.
      float* const first = to + (slot.output(row) + first_column + order::place(thread, 0));
      GIWA_UNROLL
      for (int i = 2 * r; i < o.registers; i += 8)
        *reinterpret_cast<float4*>(first + order::place(0, i - 2 * r)) = {o.value[i], o.value[i + 1], o.value[i + 4],
                                                                          o.value[i + 5]};
    }
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(thread, r); index == 0 && lane % 4 == 0 && row < rows.rows)
        *reinterpret_cast<float2*>(to + slot.sums(row)) = {m[r], l[r]};
  }
  /// Normalizes and writes rows that were not divided. Those of other alignments, or with a prior, go through local memory, so that their
  /// code is a loop: from registers it had 2400 instructions.
  GIWA_DEVICE void store_output(const few_rows_work_tile& work, const packed_rows& rows, const float (&m)[row_slots],
                                const float (&l)[row_slots], local_state& spare) const {
    const cached_sequence& q = work.sequence;
    float lse[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const int row = map::row(thread, r);
      if (row >= rows.rows) continue;
      const cached_row_end<output> to(call, q, rows.head(row), rows.query(row));
      const finished_softmax<float> end = to.finish(m[r], l[r]);
      lse[r] = end.lse;
      if (to.template is_plain<2>(Types::columns)) {
        output* const first = to.o + (first_column + map::column(thread, 0));
        GIWA_UNROLL
        for (int i = 2 * r; i < o.registers; i += 4)
          to.template store_plain<2>(first + map::column(0, i), {o.value[i], o.value[i + 1]}, end.factor);
        continue;
      }
      spare.save(m, l, o.value);
#pragma unroll 1
      for (int i = 2 * r; i < o.registers; i += 4)
        to.template store<2>(first_column + map::column(thread, i), {spare.o[i], spare.o[i + 1]}, end);
    }
    if (call.lse.data() == nullptr) return;
    if (call.has_prior()) sync();  // the prior's lse may be the one that is written: all warps have read it
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(thread, r); index == 0 && lane % 4 == 0 && row < rows.rows)
        call.lse(q.q_batch, rows.head(row), q.first_query_row + rows.query(row)) = lse[r];
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
