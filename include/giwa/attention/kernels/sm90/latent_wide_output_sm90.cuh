// SPDX-License-Identifier: MIT
// O of many latent rows: ends of leaves, NaN.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_OUTPUT_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_OUTPUT_SM90_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/sm90/latent_wide_types_sm90.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/sums/finish_rows.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The state of one of the two warpgroups, which has half of the columns of O.
template <class Types, class Mask, class Score, class Block>
struct latent_wide_output {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using operand = typename Types::operand;
  using output = typename Types::output;
  using barrier = typename Types::named_barrier;
  using score_map = warpgroup_map<Types::leaf_keys>;
  using map = typename Types::output_map;
  static constexpr int threads = Types::output_threads, row_slots = map::rows, half = Types::half;
  static constexpr int slack = 6;  // of m, as in attention_forward
  static_assert(row_slots == 2 && score_map::rows == row_slots);

  const Block& block;
  const params& p;
  const typename Types::call_params& call;
  shared_storage& s;
  const int lane, index, thread, warp;  // index: of the warpgroup; thread, warp: in it
  const score_steps<Mask, Score> steps;
  warpgroup_tile<half> o;  // (rows, columns)
  online_softmax<score_map, 0, slack> softmax;

  GIWA_DEVICE latent_wide_output(const Block& b, const params& parameters, shared_storage& storage)
      : block(b),
        p(parameters),
        call(parameters.splits.call),
        s(storage),
        lane(b.lane()),
        index(b.any(b.warp() >= 4) ? 1 : 0),  // the vote tells the compiler that a warp's threads agree
        thread(b.rank() % 128),
        warp(b.warp() % 4),
        steps{call.mask, call.score, call.scale} {}

  GIWA_DEVICE void sync() const { arch::barrier_sync(barrier::outputs, threads); }
  GIWA_DEVICE void sync_one() const { arch::barrier_sync(Types::barrier_of(barrier::of_one, index), 128); }

  // --- NaN and infinity
  /// For tiles of which some row does not see every key, when S is complete.
  GIWA_DEVICE bool scrub(const packed_rows& rows, int tile, int stage) const {
    return scrub_keys<4>(block, thread, s.k.tile[stage], rows.keys - tile * Types::leaf_keys, s.has_nonfinite[index],
                         [&] { arch::fence_async_proxy(), sync_one(); });
  }
  /// Adds what scrub() removed, times P, to the rows that see it: infinity, or NaN where P is 0. Both warpgroups call it. It is
  /// written for small code: it is in the loop more than once.
  GIWA_DEVICE void add_nonfinite(const few_rows_work_tile& work, const packed_rows& rows, int tile) {
    const int first = tile * Types::leaf_keys, left = rows.keys - first, first_column = map::column(thread, 0);
    const int keys = left < Types::leaf_keys ? left : Types::leaf_keys;
#pragma unroll 1
    for (int i = 0; i < keys * (half / 32); ++i) {
      const int key = i / (half / 32), begin = i % (half / 32) * 32;
      const cache_row from = call.row_of(work.sequence, first + key);
      operand of_lane = convert<operand>{}(0.f);
      if (from.element >= 0)
        of_lane = value_of<operand>(call.views.cache.v, from, work.head, half * index + begin + lane);
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
