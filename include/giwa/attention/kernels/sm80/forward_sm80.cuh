// SPDX-License-Identifier: MIT
// Attention by mma.sync and cp.async: a tile of queries stays in shared memory, and tiles of K and V stream past it.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FORWARD_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FORWARD_SM80_CUH

#include <giwa/attention/kernels/sm80/inputs_sm80.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/split_fp16/exponents.cuh>
#include <giwa/attention/sums/chunks.cuh>
#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/attention/tuning/sm80.hpp>
#include <giwa/attention/work/visible_tiles.hpp>
#include <giwa/attention/work/work_tiles.hpp>
#include <giwa/grid/op.hpp>
#include <giwa/softmax/online.cuh>
#include <giwa/tile/copy.cuh>
#include <giwa/tile/mma_sm80.cuh>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// FlashAttention-2 (Dao 2023, algorithm 1). The next K is loaded during the softmax and O += P V, and V during S = Q
/// K^T. Warps share only the tiles of K and V.
template <class T, class O, class Policy, class Mask, class Score>
struct sm80_attention_op {
  static constexpr int max_threads = Policy::warps * 32, min_blocks = Policy::min_blocks;
  static constexpr int block_m = Policy::block_m, block_n = Policy::block_n, warp_rows = block_m / Policy::warps;

  using inputs = sm80_inputs<T, O, Policy>;
  using element = typename inputs::element;
  static constexpr bool is_split = inputs::is_split, two_parts = Policy::parts == 2;
  static constexpr int parts = Policy::parts;

  // Keys are summed in chunks, which are merged in fp32, because tensor-core accumulation truncates toward zero: one
  // sum over 2^20 keys with values around 10 was 0.065 off (H200). With two parts each tile is summed separately, so
  // chunks are not needed.
  static constexpr bool has_chunks = !two_parts;
  static constexpr int tiles_of_chunk = ceil_div(1 << 16, block_n);

  // The head's views are in shared memory, so that they take no registers in the loop.
  struct shared_storage {
    union {
      typename inputs::tiles in;
      shared_tile<O, tile_shape<block_m, Policy::slice>, paired> o;  // (queries, columns of the output), at the end
    };
    uninitialized<attention_head<T, O>> head;
    int has_nonfinite;
  };
  // Whether what comes before the loop has the head in registers too, and need not wait until it is in shared memory.
  // H200, 2026-11-27, mean of 8 cases of 512 to 16384 tokens: 64 1.015, 256 1.04; 128 0.98.
  static constexpr bool keeps_own_head = Policy::slice <= 64 || Policy::slice > 128;
  // Whether the scores are masked before the wait for V. H100, 6 cases: 64 1.01, 128 1.00; 256 0.98.
  static constexpr bool masks_early = Policy::slice <= 128;
  struct params {
    attention_params<T, O, Mask, Score> call;
    attention_schedule schedule;
    stdlib::conditional_t<is_split, split_tensors, nothing> split{};
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    const attention_schedule::work_tile at = p.schedule.at(p.schedule.first + block.block_rank());
    if constexpr (is_split)
      if (p.split.fallback[at.batch * p.call.views.q.extent(2) + at.head] != 0) return;
    const attention_head<T, O> own = p.call.at(at.batch, at.head);
    if (block.rank() == 0) s.head.put(own);
    if constexpr (!keeps_own_head) block.sync();
    const attention_head<T, O>& head = keeps_own_head ? own : s.head.get();
    for (int64 tile = at.tile; tile * block_m < head.queries(); tile += p.schedule.query_tiles)
      one_tile(block, p, head, static_cast<int>(tile) * block_m, at.slice * Policy::slice, s);
  }

 private:
  using map_of_scores = warp_map<warp_rows, block_n>;
  using map_of_output = warp_map<warp_rows, Policy::slice>;
  using steps_of_scores = score_steps<Mask, Score>;
  static constexpr int slack = is_split ? 0 : Policy::slack;

  /// The state of a thread's rows: the softmax of all keys so far, and O of one chunk.
  struct query_rows {
    using softmax_state = online_softmax<map_of_scores, is_split && !two_parts ? -split_exponents::of_p : 0, slack>;
    using output_registers = register_tile<float, map_of_output>;
    static constexpr bool is_split = sm80_attention_op::is_split;
    softmax_state softmax;
    output_registers o;
    split_exponents exponents;  // powers of two in which scores and o are counted
  };

  /// `own` is the head for what comes before the loop: in each thread's registers if keeps_own_head.
  template <class Block>
  GIWA_DEVICE static void one_tile(const Block& block, const params& p, const attention_head<T, O>& own,
                                   int first_query, int first_column, shared_storage& s) {
    const attention_head<T, O>& head = s.head.get();
    const int lane = block.lane(), warp_row = block.warp() * warp_rows;
    steps_of_scores steps{p.call.mask, p.call.score, p.call.scale};
    const key_tiles<Mask> keys{p.call.mask, own, first_query, block_m, block_n};
    query_rows rows;
    auto& [softmax, o, exponents] = rows;
    earlier_output<query_rows> earlier;
    int end_of_chunk = tiles_of_chunk;  // if it is larger, `earlier` contains the chunks before

    softmax.reset();
    o.fill(0);
    const typename inputs::k_rows k(block, inputs::k_of(p, own), 0);
    const typename inputs::v_rows v(block, inputs::v_of(p, own), first_column);
    block.sync();  // all warps are done with the tiles of the previous work tile, and the head is in shared memory
    if (block.rank() == 0) s.has_nonfinite = 0;
    {
      const typename inputs::q_rows q(block, inputs::q_of(p, own), 0);
      if (const int tile = first_query / block_m; q.has(tile)) [[likely]]
        q.load(block, tile, s.in.q);
      else
        inputs::load_any(block, inputs::q_of(p, own), {first_query, 0}, s.in.q);
    }
    int n = keys.next(0);
    if (k.has(n)) [[likely]]
      k.load(block, n, s.in.k);
    else if (n < keys.count())
      inputs::load_any(block, inputs::k_of(p, own), {int64{n} * block_n, 0}, s.in.k);
    copy_commit();
    while (n < keys.count()) {
      if (has_chunks && n >= end_of_chunk) [[unlikely]] {
        earlier.take_from(block, rows, steps, end_of_chunk == tiles_of_chunk);
        end_of_chunk = (n / tiles_of_chunk + 1) * tiles_of_chunk;
      }
      const tile_keep keep = keys.keep(n);
      const int next = keys.next(n + 1);
      copy_wait();
      block.sync();  // K has arrived, and all warps are done with V
      if (v.has(n)) [[likely]]
        v.load(block, n, s.in.v);
      else
        inputs::load_any(block, inputs::v_of(p, head), {int64{n} * block_n, first_column}, s.in.v);
      copy_commit();
      register_tile<float, map_of_scores> scores;
      multiply_qk(lane, warp_row, scores, s.in);
      if constexpr (is_split)
        exponents.begin_scores(p.split.q.exponent(head.head, head.first_query_row, head.batch, first_query / block_m) +
                                   p.split.k.exponent(head.kv_head, head.first_key_row, head.batch, n),
                               p.call.scale, steps, softmax);
      // The bounds are computed here, so that they take no registers in the rest of the loop.
      const auto apply_steps = [&] {
        steps.apply(lane, scores, typename steps_of_scores::bounds(head), keep,
                    rows_are_queries{first_query + warp_row, n * block_n});
      };
      if constexpr (masks_early) apply_steps();
      copy_wait();
      block.sync();  // V has arrived, and all warps are done with K
      if (k.has(next)) [[likely]]
        k.load(block, next, s.in.k);
      else if (next < keys.count())
        inputs::load_any(block, inputs::k_of(p, head), {int64{next} * block_n, 0}, s.in.k);
      copy_commit();
      if constexpr (!masks_early) apply_steps();
      if constexpr (!is_split)
        if (keep == tile_keep::some) {
          scrub_nonfinite(block, s.in.v[0], s.has_nonfinite);
          block.sync();
        }
      float factor[map_of_scores::rows];
      weigh(block, p, head, n, steps, rows, scores, factor);
      uint32 p_operand[parts][map_of_scores::registers / 2];
      make_operand(block, head, rows_are_queries{first_query + warp_row, n * block_n}, steps, exponents, scores,
                   p_operand);
      multiply_pv(lane, o, factor, p_operand, s.in.v);
      n = next;
    }
    copy_wait();
    if (has_chunks && end_of_chunk > tiles_of_chunk) earlier.add_to(rows, steps);
    finish(block, p, head, first_query, first_column, s, steps, rows, keys);
  }

  /// The softmax of tile n: scores become P, and O becomes relative to the new maximum, but with two parts, whose products
  /// multiply it by `factor`.
  template <class Block>
  GIWA_DEVICE static void weigh(const Block& block, const params& p, const attention_head<T, O>& head, int n,
                                const steps_of_scores& steps, query_rows& rows,
                                register_tile<float, map_of_scores>& scores, float (&factor)[map_of_scores::rows]) {
    auto& [softmax, o, exponents] = rows;
    const auto rescale_o = [&] { o.transform_rows(factor, [](float x, float f) { return x * f; }); };
    float largest[map_of_scores::rows];
    softmax.find_maxima(block, scores, largest);
    if (slack == 0 || block.any(softmax.exceeds_slack(largest))) {
      softmax.raise(largest, steps.scale_log2(), factor);
      if constexpr (slack > 0) rescale_o();
    }
    // From here on there is no branch, so that the products of P V begin before all of P is computed.
    float sum[map_of_scores::rows];
    softmax.weigh(scores, sum);
    softmax.add(sum);
    if constexpr (is_split)
      exponents.begin_values(p.split.v.exponent(head.kv_head, head.first_key_row, head.batch, n), factor);
    if constexpr (slack == 0 && !two_parts) rescale_o();
  }

  /// P as the operand of P V, without the weights that are dropped.
  template <class Block>
  GIWA_DEVICE static void make_operand(const Block& block, const attention_head<T, O>& head,
                                       const rows_are_queries& tile, const steps_of_scores& steps,
                                       const split_exponents& exponents,
                                       const register_tile<float, map_of_scores>& scores,
                                       uint32 (&operand)[parts][map_of_scores::registers / 2]) {
    if constexpr (two_parts)
      to_operands(scores, power_of_two(-exponents.of_p), operand[0], operand[1]);
    else
      to_operand<element>(scores, operand[0]);
    if constexpr (drops_weights<Score>) {
      kept_tile<map_of_scores, false> kept;
      steps.find_kept(block, block.lane(), typename steps_of_scores::bounds(head), tile, kept);
      kept.clear(operand);
    }
  }

  /// Normalizes O, stores it and lse, and adds scrubbed NaN and infinity back.
  template <class Block>
  GIWA_DEVICE static void finish(const Block& block, const params& p, const attention_head<T, O>& head, int first_query,
                                 int first_column, shared_storage& s, const steps_of_scores& steps, query_rows& rows,
                                 const key_tiles<Mask>& keys) {
    auto& [softmax, o, exponents] = rows;
    const int lane = block.lane(), warp_row = block.warp() * warp_rows;
    float normalizer[map_of_scores::rows], of_earlier[map_of_scores::rows];
    finish_rows(block, lane, softmax, steps.scale_log2(), p.call, head, first_query + warp_row, first_column == 0,
                normalizer, &of_earlier);
    if constexpr (is_split)
      if (head.keys() > 0)
        exponents.finish(lane, o, p.split.v, head.batch, head.kv_head, static_cast<int>(head.v.extent(1)), two_parts);
    o.transform_rows(normalizer, [](float x, float f) { return x * f + 0.f; });  // + 0 makes -0 positive
    block.sync();  // all warps are done with the tiles of the inputs
    if constexpr (is_part<Score>) {
      const part_rows part(p.call.score, head);
      if (part.finish(block, lane, of_earlier, o, first_query + warp_row, 0, warp_rows,
                      part.has_open(first_query, block_m), s.has_nonfinite != 0, steps, keys,
                      [&](int tile) { return keys.keep(tile) == tile_keep::some; }))
        return;
    }
    store(lane, o, 0, s.o, warp_row);
    block.sync();
    if constexpr (GIWA_ARCH_CAPABILITY == 90)
      store_by_call(block, s, {first_query, first_column});
    else
      store(block, s.o, head.o, {first_query, first_column});
    if constexpr (!is_split)
      if (s.has_nonfinite != 0) {
        block.sync();
        add_scrubbed(block, head, first_query, first_column, steps, keys);
      }
  }

  // On 9.0 ptxas loads the fragments of the products earlier if this function is not inlined (64: 1.03 times as fast, H200,
  // 2026-11-27), on 8.0 and 8.9 if it is.
  template <class Block>
  __noinline__ GIWA_DEVICE static void store_by_call(const Block& block, const shared_storage& s,
                                                     const giwa::index<2>& origin) {
    store(block, s.o, s.head.get().o, origin);
  }
  template <class Block>
  __noinline__ GIWA_DEVICE static void add_scrubbed(const Block& block, const attention_head<T, O>& head,
                                                    int first_query, int first_column, const steps_of_scores& steps,
                                                    const key_tiles<Mask>& keys) {
    add_nonfinite(block, steps, head, keys, first_query, block_m, first_column, Policy::slice,
                  [&](int tile) { return keys.keep(tile) == tile_keep::some; });
  }

  /// S = Q K^T. With split fp16 the small products come first, because tensor-core accumulation truncates toward zero.
  GIWA_DEVICE static void multiply_qk(int lane, int warp_row, register_tile<float, map_of_scores>& scores,
                                      const typename inputs::tiles& in) {
    scores.fill(0);
    if constexpr (two_parts) {
      multiply_add(lane, scores, in.q[1], warp_row, transposed(in.k[0]), 0);
      multiply_add(lane, scores, in.q[0], warp_row, transposed(in.k[1]), 0);
    }
    multiply_add(lane, scores, in.q[0], warp_row, transposed(in.k[0]), 0);
  }

  /// O += P V; with split fp16, O = factor O + P V.
  template <class Probabilities, class V>
  GIWA_DEVICE static void multiply_pv(int lane, typename query_rows::output_registers& o,
                                      const float (&factor)[map_of_scores::rows], const Probabilities& p, const V& v) {
    if constexpr (!two_parts) {
      multiply_add(lane, o, p[0], v[0], 0);
    } else {
      static_assert(warp_rows == 16, "the registers of a slice of columns are contiguous");
      constexpr int slice = Policy::slice % 64 == 0 ? 64 : Policy::slice % 32 == 0 ? 32 : 16;
      GIWA_UNROLL
      for (int first = 0; first < Policy::slice; first += slice) {
        warp_tile<16, slice> partial_o;
        partial_o.fill(0);
        multiply_add(lane, partial_o, p[1], v[0], first);
        multiply_add(lane, partial_o, p[0], v[1], first);
        multiply_add(lane, partial_o, p[0], v[0], first);
        add_tile_sum(o, factor, partial_o, first / slice);
      }
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
