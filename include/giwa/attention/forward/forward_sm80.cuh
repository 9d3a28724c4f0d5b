// SPDX-License-Identifier: MIT
// Attention by mma.sync: tiles of queries that stay, tiles of keys and values that stream past them.
#ifndef GIWA_ATTENTION_FORWARD_FORWARD_SM80_CUH
#define GIWA_ATTENTION_FORWARD_FORWARD_SM80_CUH

#include <giwa/attention/forward/nonfinite.cuh>
#include <giwa/attention/split_fp16/exponents.cuh>
#include <giwa/attention/schedule/schedule.hpp>
#include <giwa/attention/forward/policy.hpp>
#include <giwa/grid/op.hpp>
#include <giwa/softmax/online.cuh>
#include <giwa/tile/copy.cuh>
#include <giwa/tile/mma_sm80.cuh>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// FlashAttention-2 (Dao 2023, algorithm 1) with the roles of its shared memory: the next keys arrive behind the softmax and
/// the second product, the values behind the first. Warps share nothing but the tiles of keys and values.
template <class T, class O, class Policy, class Mask, class Score>
struct sm80_attention_op {
  static constexpr int max_threads = Policy::warps * 32, min_blocks = Policy::min_blocks;
  static constexpr int rows = Policy::rows, columns = Policy::columns, warp_rows = rows / Policy::warps;

  // fp32 comes as fp16 pieces with exponents.
  static constexpr bool in_pieces = stdlib::same_as<T, fp32>, two_pieces = Policy::pieces == 2;
  static constexpr int pieces = Policy::pieces;
  using element = stdlib::conditional_t<in_pieces, fp16, T>;

  // Rows of an odd number of 16 bytes: ldmatrix finds no two of 8 rows in the same banks, whatever the head size.
  template <class Element, int Rows, int Columns>
  using tile = shared_tile<Element, tile_shape<Rows, Columns>, padded<16 / static_cast<int>(sizeof(Element))>>;
  struct input_tiles {
    tile<element, rows, Policy::head_size> q[pieces];     // (queries, head size)
    tile<element, columns, Policy::head_size> k[pieces];  // (keys, head size)
    tile<element, columns, Policy::slice> v[pieces];      // (keys, columns of the output)
  };
  // The head's views lie in shared memory too: read when they are needed, they leave the registers to the sums.
  struct shared_storage {
    union {
      input_tiles in;
      tile<O, rows, Policy::slice> o;  // (queries, columns of the output), at the end
    };
    uninitialized<attention_head<T, O>> head;
    int found;
  };
  struct params {
    attention_params<T, O, Mask, Score> call;
    attention_grid grid;
    stdlib::conditional_t<in_pieces, attention_pieces, nothing> pieces{};
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    const attention_grid::place at = p.grid.at(p.grid.first + block.block_rank());
    if constexpr (in_pieces)
      if (p.pieces.apart[at.batch * p.call.views.q.extent(2) + at.head] != 0) return;
    if (block.rank() == 0) s.head.put(p.call.at(at.batch, at.head));
    block.sync();
    const attention_head<T, O>& head = s.head.get();
    for (int64 tile = at.tile; tile * rows < head.queries(); tile += p.grid.tiles)
      one_tile(block, p, head, static_cast<int>(tile) * rows, at.slice * Policy::slice, s);
  }

 private:
  using map_of_scores = warp_map<warp_rows, columns>;
  using map_of_output = warp_map<warp_rows, Policy::slice>;

  // The pieces of a tensor of the head, or the tensor itself.
  struct input {
    tensor_view<const element, 2> piece[pieces];  // (rows, head size)
  };
  static constexpr int largest_row = Policy::head_size > Policy::head_size_v ? Policy::head_size : Policy::head_size_v;
  GIWA_DEVICE static input input_of(const piece_tensor& t, const attention_head<T, O>& h, int head, int first_row,
                                    int64 length) {
    input in;
    for (int i = 0; i < pieces; ++i)
      in.piece[i] = {t.row(h.sequence, head, first_row) + i * t.low,
                     {length, t.low < largest_row ? t.low : largest_row},
                     {t.width, 1}};
    return in;
  }

  template <class Block, class Tile>
  GIWA_DEVICE static void start(const Block& block, const input& from, const giwa::index<2>& origin,
                                Tile (&to)[pieces]) {
    GIWA_UNROLL
    for (int i = 0; i < pieces; ++i) load_async(block, from.piece[i], origin, to[i]);
  }
  template <class Block, class Tile>
  GIWA_DEVICE static bool start_early(const Block& block, const input& from, const giwa::index<2>& origin,
                                      Tile (&to)[pieces]) {
    if constexpr (map_of_scores::registers + map_of_output::registers > 160) {
      static_assert(pieces == 1);
      return load_whole_tile(block, from.piece[0], origin, to[0]);
    } else {
      start(block, from, origin, to);
      return true;
    }
  }

  template <class Block>
  GIWA_DEVICE static void one_tile(const Block& block, const params& p, const attention_head<T, O>& head,
                                   int first_query, int first_column, shared_storage& s) {
    const attention_params<T, O, Mask, Score>& call = p.call;
    const int lane = block.lane(), warp_row = block.warp() * warp_rows;
    score_steps<Mask, Score> steps{call.mask, call.score, call.scale};
    const key_tiles<Mask> keys{call.mask, head, first_query, rows, columns};
    const auto q_of = [&] {
      if constexpr (in_pieces)
        return input_of(p.pieces.q, head, head.head, head.first_query_row, head.queries());
      else
        return input{{head.q}};
    };
    const auto k_of = [&] {
      if constexpr (in_pieces)
        return input_of(p.pieces.k, head, head.kv_head, head.first_key_row, head.keys());
      else
        return input{{head.k}};
    };
    const auto v_of = [&] {
      if constexpr (in_pieces)
        return input_of(p.pieces.v, head, head.kv_head, head.first_key_row, head.keys());
      else
        return input{{head.v}};
    };
    online_softmax<map_of_scores, in_pieces && !two_pieces ? -piece_exponents::of_weights : 0> softmax;
    register_tile<float, map_of_output> o;
    piece_exponents exponents;  // of what scores and o are counted in

    softmax.reset();
    o.fill(0);
    block.sync();  // everybody has left the tiles of the round before
    if (block.rank() == 0) s.found = 0;
    start(block, q_of(), {first_query, 0}, s.in.q);
    int n = keys.next(0);
    if (n < keys.count()) start(block, k_of(), {int64{n} * columns, 0}, s.in.k);
    copy_commit();
    while (n < keys.count()) {
      const tile_keep keep = keys.keep(n);
      copy_wait();
      block.sync();  // the keys are there, and everybody has left the values
      start(block, v_of(), {int64{n} * columns, first_column}, s.in.v);
      copy_commit();

      register_tile<float, map_of_scores> scores;
      scores.fill(0);
      if constexpr (two_pieces) {  // small products first, as the tensor cores cut what they add
        multiply_add(lane, scores, s.in.q[1], warp_row, transposed(s.in.k[0]), 0);
        multiply_add(lane, scores, s.in.q[0], warp_row, transposed(s.in.k[1]), 0);
      }
      multiply_add(lane, scores, s.in.q[0], warp_row, transposed(s.in.k[0]), 0);
      if constexpr (in_pieces)
        exponents.enter_scores(p.pieces.q.exponent(head.head, head.first_query_row, head.batch, first_query / rows) +
                                   p.pieces.k.exponent(head.kv_head, head.first_key_row, head.batch, n),
                               call.scale, steps, softmax);
      // Made here, so that the rest of the loop needs no registers for them.
      steps.apply(lane, scores, typename score_steps<Mask, Score>::bounds(head), keep, first_query + warp_row,
                  n * columns);
      const int next = keys.next(n + 1);
      copy_wait();
      block.sync();  // the values are there, and everybody has left the keys
      // The next keys at once, if that takes few registers; else where the scores have gone.
      const giwa::index<2> next_keys{int64{next} * columns, 0};
      const bool on_their_way = next >= keys.count() || start_early(block, k_of(), next_keys, s.in.k);

      float factor[map_of_scores::rows];
      softmax.update(block, scores, steps.scale_log2(), factor);
      if constexpr (in_pieces)
        exponents.enter_values(p.pieces.v.exponent(head.kv_head, head.first_key_row, head.batch, n), factor);
      o.transform_rows(factor, [](float x, float f) { return x * f; });
      if constexpr (!in_pieces)
        if (keep == tile_keep::some) {
          take_non_finite(block, s.in.v[0], s.found);
          block.sync();
        }
      uint32 weights[pieces][map_of_scores::registers / 2];
      if constexpr (two_pieces)
        to_operands(scores, power_of_two(-exponents.of_weights), weights[0], weights[1]);
      else
        to_operand<element>(scores, weights[0]);
      if (!on_their_way) start(block, k_of(), next_keys, s.in.k);
      copy_commit();
      add_products(lane, o, weights, s.in.v);
      n = next;
    }
    copy_wait();

    float normalizer[map_of_scores::rows];
    finish_rows(block, lane, softmax, steps.scale_log2(), call, head, first_query + warp_row, first_column == 0,
                normalizer);
    if constexpr (in_pieces)
      if (head.keys() > 0)
        exponents.leave(lane, o, p.pieces.v, head.batch, head.kv_head, static_cast<int>(head.v.extent(1)), two_pieces);
    o.transform_rows(normalizer, [](float x, float f) { return x * f + 0.f; });  // no -0, which others' NaN might turn
    block.sync();  // everybody has left the tiles of the inputs
    store(lane, o, 0, s.o, warp_row);
    block.sync();
    store(block, s.o, head.o, {first_query, first_column});
    if constexpr (!in_pieces)
      if (s.found != 0) {
        block.sync();
        add_non_finite(block, steps, head, keys, first_query, rows, first_column, Policy::slice,
                       [&](int tile) { return keys.keep(tile) == tile_keep::some; });
      }
  }

  /// o += weights v. In pieces each tile is summed up apart, as the tensor cores cut what they add, always towards 0.
  template <class Weights, class Values>
  GIWA_DEVICE static void add_products(int lane, register_tile<float, map_of_output>& o, const Weights& weights,
                                       const Values& v) {
    if constexpr (!two_pieces) {
      multiply_add(lane, o, weights[0], v[0], 0);
    } else {
      static_assert(warp_rows == 16, "the registers of a slice of columns lie side by side");
      constexpr int slice = Policy::slice % 64 == 0 ? 64 : Policy::slice % 32 == 0 ? 32 : 16;
      GIWA_UNROLL
      for (int first = 0; first < Policy::slice; first += slice) {
        warp_tile<16, slice> sums;
        sums.fill(0);
        multiply_add(lane, sums, weights[1], v[0], first);
        multiply_add(lane, sums, weights[0], v[1], first);
        multiply_add(lane, sums, weights[0], v[0], first);
        GIWA_UNROLL
        for (int i = 0; i < sums.registers; ++i) o.value[first / slice * sums.registers + i] += sums.value[i];
      }
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
