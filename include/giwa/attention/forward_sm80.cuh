// SPDX-License-Identifier: MIT
// Attention by mma.sync: tiles of queries that stay, tiles of keys and values that stream past them.
#ifndef GIWA_ATTENTION_FORWARD_SM80_CUH
#define GIWA_ATTENTION_FORWARD_SM80_CUH

#include <giwa/attention/schedule.hpp>
#include <giwa/attention/score_steps.cuh>
#include <giwa/attention/tuning.hpp>
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

  // Rows of an odd number of 16 bytes: ldmatrix finds no two of 8 rows in the same banks, whatever the head size.
  template <class Element, int Rows, int Columns>
  using tile = shared_tile<Element, tile_shape<Rows, Columns>, padded<16 / static_cast<int>(sizeof(Element))>>;
  struct input_tiles {
    tile<T, rows, Policy::head_size> q;     // (queries, head size)
    tile<T, columns, Policy::head_size> k;  // (keys, head size)
    tile<T, columns, Policy::slice> v;      // (keys, columns of the output)
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
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    const attention_grid::place at = p.grid.at(p.grid.first + block.block_rank());
    if (block.rank() == 0) s.head.put(p.call.at(at.batch, at.head));
    block.sync();
    const attention_head<T, O>& head = s.head.get();
    for (int64 tile = at.tile; tile * rows < head.queries(); tile += p.grid.tiles)
      one_tile(block, p.call, head, static_cast<int>(tile) * rows, at.slice * Policy::slice, s);
  }

 private:
  using map_of_scores = warp_map<warp_rows, columns>;
  using map_of_output = warp_map<warp_rows, Policy::slice>;

  template <class Block, class Tile>
  GIWA_DEVICE static bool start_loading(const Block& block, const tensor_view<const T, 2>& from,
                                        const giwa::index<2>& origin, Tile& to) {
    if constexpr (map_of_scores::registers + map_of_output::registers > 160)
      return load_whole_tile(block, from, origin, to);
    load_async(block, from, origin, to);
    return true;
  }

  template <class Block>
  GIWA_DEVICE static void one_tile(const Block& block, const attention_params<T, O, Mask, Score>& call,
                                   const attention_head<T, O>& head, int first_query, int first_column,
                                   shared_storage& s) {
    const int lane = block.lane(), warp_row = block.warp() * warp_rows;
    const score_steps<Mask, Score> steps{call.mask, call.score, call.scale};
    const key_tiles<Mask> keys{call.mask, head, first_query, rows, columns};
    online_softmax<map_of_scores> softmax;
    register_tile<float, map_of_output> o;

    softmax.reset();
    o.fill(0);
    block.sync();  // everybody has left the tiles of the round before
    if (block.rank() == 0) s.found = 0;
    load_async(block, head.q, {first_query, 0}, s.in.q);
    int n = keys.next(0);
    if (n < keys.count()) load_async(block, head.k, {int64{n} * columns, 0}, s.in.k);
    copy_commit();
    while (n < keys.count()) {
      const tile_keep keep = keys.keep(n);
      copy_wait();
      block.sync();  // the keys are there, and everybody has left the values
      load_async(block, head.v, {int64{n} * columns, first_column}, s.in.v);
      copy_commit();

      register_tile<float, map_of_scores> scores;
      scores.fill(0);
      multiply_add(lane, scores, s.in.q, warp_row, transposed(s.in.k), 0);
      // Made here, so that the rest of the loop needs no registers for them.
      steps.apply(lane, scores, typename score_steps<Mask, Score>::bounds(head), keep, first_query + warp_row,
                  n * columns);
      const int next = keys.next(n + 1);
      copy_wait();
      block.sync();  // the values are there, and everybody has left the keys
      // The next keys at once, if that takes few registers; else where the scores have gone.
      const giwa::index<2> next_keys{int64{next} * columns, 0};
      const bool on_their_way = next >= keys.count() || start_loading(block, head.k, next_keys, s.in.k);

      float factor[map_of_scores::rows];
      softmax.update(block, scores, steps.scale_log2(), factor);
      o.transform_rows(factor, [](float x, float f) { return x * f; });
      if (keep == tile_keep::some) {
        take_non_finite(block, s.in.v, s.found);
        block.sync();
      }
      uint32 weights[map_of_scores::registers / 2];
      to_operand<T>(scores, weights);
      if (!on_their_way) load_async(block, head.k, next_keys, s.in.k);
      copy_commit();
      multiply_add(lane, o, weights, s.in.v, 0);
      n = next;
    }
    copy_wait();

    float normalizer[map_of_scores::rows];
    finish_rows(block, lane, softmax, steps.scale_log2(), call, head, first_query + warp_row, first_column == 0,
                normalizer);
    o.transform_rows(normalizer, [](float x, float f) { return x * f + 0.f; });  // no -0, which others' NaN might turn
    block.sync();  // everybody has left the tiles of the inputs
    store(lane, o, 0, s.o, warp_row);
    block.sync();
    store(block, s.o, head.o, {first_query, first_column});
    if (s.found != 0) {
      block.sync();
      add_non_finite(block, steps, head, keys, first_query, rows, first_column, Policy::slice,
                     [&](int tile) { return keys.keep(tile) == tile_keep::some; });
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
