// SPDX-License-Identifier: MIT
// Attention by mma.sync and cp.async: a tile of queries stays in shared memory, and tiles of K and V stream past it.
#ifndef GIWA_ATTENTION_FORWARD_FORWARD_SM80_CUH
#define GIWA_ATTENTION_FORWARD_FORWARD_SM80_CUH

#include <giwa/attention/forward/chunks.cuh>
#include <giwa/attention/forward/nonfinite.cuh>
#include <giwa/attention/forward/policy.hpp>
#include <giwa/attention/schedule/visible_tiles.hpp>
#include <giwa/attention/schedule/work_tiles.hpp>
#include <giwa/attention/split_fp16/exponents.cuh>
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

  // fp32 arrives as split fp16 (split_fp16/).
  static constexpr bool is_split = stdlib::same_as<T, fp32>, two_parts = Policy::parts == 2;
  static constexpr int parts = Policy::parts;
  using element = stdlib::conditional_t<is_split, fp16, T>;

  // Keys are summed in chunks, which are merged in fp32, because tensor-core accumulation truncates toward zero: one
  // sum over 2^20 keys with values around 10 was 0.065 off (H200). With two parts each tile is summed separately, so
  // chunks are not needed.
  static constexpr bool has_chunks = !two_parts;
  static constexpr int tiles_of_chunk = ceil_div(1 << 16, block_n);

  // A row is an odd number of 16-byte units, so ldmatrix reads 8 rows from different banks for every head size.
  template <class Element, int Rows, int Columns>
  using tile = shared_tile<Element, tile_shape<Rows, Columns>, padded<16 / static_cast<int>(sizeof(Element))>>;
  struct input_tiles {
    tile<element, block_m, Policy::head_size> q[parts];  // (queries, head size)
    tile<element, block_n, Policy::head_size> k[parts];  // (keys, head size)
    tile<element, block_n, Policy::slice> v[parts];      // (keys, columns of the output)
  };
  // The head's views are in shared memory, so that they take no registers.
  struct shared_storage {
    union {
      input_tiles in;
      tile<O, block_m, Policy::slice> o;  // (queries, columns of the output), at the end
    };
    uninitialized<attention_head<T, O>> head;
    int has_nonfinite;
  };
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
    if (block.rank() == 0) s.head.put(p.call.at(at.batch, at.head));
    block.sync();
    const attention_head<T, O>& head = s.head.get();
    for (int64 tile = at.tile; tile * block_m < head.queries(); tile += p.schedule.query_tiles)
      one_tile(block, p, head, static_cast<int>(tile) * block_m, at.slice * Policy::slice, s);
  }

 private:
  using map_of_scores = warp_map<warp_rows, block_n>;
  using map_of_output = warp_map<warp_rows, Policy::slice>;
  using steps_of_scores = score_steps<Mask, Score>;

  /// The state of a thread's rows: the softmax of all keys so far, and O of one chunk.
  struct query_rows {
    using softmax_state = online_softmax<map_of_scores, is_split && !two_parts ? -split_exponents::of_p : 0>;
    using output_registers = register_tile<float, map_of_output>;
    static constexpr bool is_split = sm80_attention_op::is_split;
    softmax_state softmax;
    output_registers o;
    split_exponents exponents;  // powers of two in which scores and o are counted
  };

  // The hi and lo parts of a tensor of the head, or the tensor itself.
  struct input {
    tensor_view<const element, 2> part[parts];  // (rows, head size)
  };
  static constexpr int largest_row = Policy::head_size > Policy::head_size_v ? Policy::head_size : Policy::head_size_v;
  GIWA_DEVICE static input input_of(const split_tensor& t, const attention_head<T, O>& h, int head, int first_row,
                                    int64 length) {
    input in;
    for (int i = 0; i < parts; ++i)
      in.part[i] = {t.row(h.sequence, head, first_row) + i * t.lo,
                    {length, t.lo < largest_row ? t.lo : largest_row},
                    {t.width, 1}};
    return in;
  }
  GIWA_DEVICE static input q_of(const params& p, const attention_head<T, O>& h) {
    if constexpr (is_split)
      return input_of(p.split.q, h, h.head, h.first_query_row, h.queries());
    else
      return {{h.q}};
  }
  GIWA_DEVICE static input k_of(const params& p, const attention_head<T, O>& h) {
    if constexpr (is_split)
      return input_of(p.split.k, h, h.kv_head, h.first_key_row, h.keys());
    else
      return {{h.k}};
  }
  GIWA_DEVICE static input v_of(const params& p, const attention_head<T, O>& h) {
    if constexpr (is_split)
      return input_of(p.split.v, h, h.kv_head, h.first_key_row, h.keys());
    else
      return {{h.v}};
  }

  template <class Block, class Tile>
  GIWA_DEVICE static void start(const Block& block, const input& from, const giwa::index<2>& origin,
                                Tile (&to)[parts]) {
    GIWA_UNROLL
    for (int i = 0; i < parts; ++i) load_async(block, from.part[i], origin, to[i]);
  }
  /// Starts the copy if that takes few registers. Otherwise returns false, and the caller starts it when the scores no
  /// longer take registers.
  template <class Block, class Tile>
  GIWA_DEVICE static bool start_early(const Block& block, const input& from, const giwa::index<2>& origin,
                                      Tile (&to)[parts]) {
    if constexpr (map_of_scores::registers + map_of_output::registers > 160) {
      static_assert(parts == 1);
      return load_whole_tile(block, from.part[0], origin, to[0]);
    } else {
      start(block, from, origin, to);
      return true;
    }
  }

  template <class Block>
  GIWA_DEVICE static void one_tile(const Block& block, const params& p, const attention_head<T, O>& head,
                                   int first_query, int first_column, shared_storage& s) {
    const int lane = block.lane(), warp_row = block.warp() * warp_rows;
    steps_of_scores steps{p.call.mask, p.call.score, p.call.scale};
    const key_tiles<Mask> keys{p.call.mask, head, first_query, block_m, block_n};
    query_rows rows;
    auto& [softmax, o, exponents] = rows;
    earlier_output<query_rows> earlier;
    int end_of_chunk = tiles_of_chunk;  // if it is larger, `earlier` contains the chunks before

    softmax.reset();
    o.fill(0);
    block.sync();  // all warps are done with the tiles of the previous work tile
    if (block.rank() == 0) s.has_nonfinite = 0;
    start(block, q_of(p, head), {first_query, 0}, s.in.q);
    int n = keys.next(0);
    if (n < keys.count()) start(block, k_of(p, head), {int64{n} * block_n, 0}, s.in.k);
    copy_commit();
    while (n < keys.count()) {
      if (has_chunks && n >= end_of_chunk) [[unlikely]] {
        earlier.take_from(block, rows, steps, end_of_chunk == tiles_of_chunk);
        end_of_chunk = (n / tiles_of_chunk + 1) * tiles_of_chunk;
      }
      const tile_keep keep = keys.keep(n);
      copy_wait();
      block.sync();  // K has arrived, and all warps are done with V
      start(block, v_of(p, head), {int64{n} * block_n, first_column}, s.in.v);
      copy_commit();

      register_tile<float, map_of_scores> scores;
      multiply_qk(lane, warp_row, scores, s.in);
      if constexpr (is_split)
        exponents.begin_scores(p.split.q.exponent(head.head, head.first_query_row, head.batch, first_query / block_m) +
                                   p.split.k.exponent(head.kv_head, head.first_key_row, head.batch, n),
                               p.call.scale, steps, softmax);
      // The bounds are computed here, so that they take no registers in the rest of the loop.
      steps.apply(lane, scores, typename steps_of_scores::bounds(head), keep,
                  rows_are_queries{first_query + warp_row, n * block_n});
      const int next = keys.next(n + 1);
      copy_wait();
      block.sync();  // V has arrived, and all warps are done with K
      const giwa::index<2> next_keys{int64{next} * block_n, 0};
      const bool started = next >= keys.count() || start_early(block, k_of(p, head), next_keys, s.in.k);

      float factor[map_of_scores::rows];
      softmax.update(block, scores, steps.scale_log2(), factor);
      if constexpr (is_split)
        exponents.begin_values(p.split.v.exponent(head.kv_head, head.first_key_row, head.batch, n), factor);
      o.transform_rows(factor, [](float x, float f) { return x * f; });
      if constexpr (!is_split)
        if (keep == tile_keep::some) {
          scrub_nonfinite(block, s.in.v[0], s.has_nonfinite);
          block.sync();
        }
      uint32 p_operand[parts][map_of_scores::registers / 2];
      if constexpr (two_parts)
        to_operands(scores, power_of_two(-exponents.of_p), p_operand[0], p_operand[1]);
      else
        to_operand<element>(scores, p_operand[0]);
      if constexpr (drops_weights<Score>) {
        kept_tile<map_of_scores, false> kept;
        steps.find_kept(block, lane, typename steps_of_scores::bounds(head),
                        rows_are_queries{first_query + warp_row, n * block_n}, kept);
        kept.clear(p_operand);
      }
      if (!started) start(block, k_of(p, head), next_keys, s.in.k);
      copy_commit();
      multiply_pv(lane, o, p_operand, s.in.v);
      n = next;
    }
    copy_wait();
    if (has_chunks && end_of_chunk > tiles_of_chunk) earlier.add_to(rows, steps);
    finish(block, p, head, first_query, first_column, s, steps, rows, keys);
  }

  /// Normalizes O, stores it and lse, and adds scrubbed NaN and infinity back.
  template <class Block>
  GIWA_DEVICE static void finish(const Block& block, const params& p, const attention_head<T, O>& head, int first_query,
                                 int first_column, shared_storage& s, const steps_of_scores& steps, query_rows& rows,
                                 const key_tiles<Mask>& keys) {
    auto& [softmax, o, exponents] = rows;
    const int lane = block.lane(), warp_row = block.warp() * warp_rows;
    float normalizer[map_of_scores::rows];
    finish_rows(block, lane, softmax, steps.scale_log2(), p.call, head, first_query + warp_row, first_column == 0,
                normalizer);
    if constexpr (is_split)
      if (head.keys() > 0)
        exponents.finish(lane, o, p.split.v, head.batch, head.kv_head, static_cast<int>(head.v.extent(1)), two_parts);
    o.transform_rows(normalizer, [](float x, float f) { return x * f + 0.f; });  // + 0 makes -0 positive
    block.sync();  // all warps are done with the tiles of the inputs
    store(lane, o, 0, s.o, warp_row);
    block.sync();
    store(block, s.o, head.o, {first_query, first_column});
    if constexpr (!is_split)
      if (s.has_nonfinite != 0) {
        block.sync();
        add_nonfinite(block, steps, head, keys, first_query, block_m, first_column, Policy::slice,
                      [&](int tile) { return keys.keep(tile) == tile_keep::some; });
      }
  }

  /// S = Q K^T. With split fp16 the small products come first, because tensor-core accumulation truncates toward zero.
  GIWA_DEVICE static void multiply_qk(int lane, int warp_row, register_tile<float, map_of_scores>& scores,
                                      const input_tiles& in) {
    scores.fill(0);
    if constexpr (two_parts) {
      multiply_add(lane, scores, in.q[1], warp_row, transposed(in.k[0]), 0);
      multiply_add(lane, scores, in.q[0], warp_row, transposed(in.k[1]), 0);
    }
    multiply_add(lane, scores, in.q[0], warp_row, transposed(in.k[0]), 0);
  }

  /// O += P V. With split fp16 each tile is summed separately, because the truncation errors of one sum over all keys
  /// would add up.
  template <class Probabilities, class V>
  GIWA_DEVICE static void multiply_pv(int lane, typename query_rows::output_registers& o, const Probabilities& p,
                                      const V& v) {
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
        GIWA_UNROLL
        for (int i = 0; i < partial_o.registers; ++i)
          o.value[first / slice * partial_o.registers + i] += partial_o.value[i];
      }
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
