// SPDX-License-Identifier: MIT
// The gradients of attention in 16 bits by mma.sync and cp.async: a tile of one axis stays in shared memory, and tiles of
// the other stream past it.
#ifndef GIWA_ATTENTION_KERNELS_SM80_BACKWARD_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_BACKWARD_SM80_CUH

#include <giwa/attention/kernels/simt/forward_simt.cuh>
#include <giwa/attention/kernels/simt/row_terms.cuh>
#include <giwa/attention/kernels/simt/store_gradient.cuh>
#include <giwa/attention/kernels/sm80/backward_steps_sm80.cuh>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/problem/score_gradient.hpp>
#include <giwa/attention/tuning/sm80.hpp>
#include <giwa/tile/mma_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// dq by tiles of queries, or dk, dv or both by tiles of keys: simt_backward_op with products on tensor cores. With fixed
/// rows a and b and moving rows x and y (q, dout, k, v for dq; k, v, q, dout for dk and dv):
///   S = a x^T,  dP = b y^T,  P = e^(score(S) - lse),  dS = P (dP - delta) slope,
///   dq or dk = scale * sum of dS x,  dv = sum of P y.
/// For what sm80_all_gradients_op does not do. A warp has whole rows of S, so that P and dS go from the accumulators into
/// the next product as left operands. S and dP are computed for dq and for dk again: seven products instead of five, but
/// no atomics and no sums in memory.
template <class T, class G, int HeadSize, int HeadSizeV, gradient Of, class Tile, class Mask, class Score>
struct sm80_backward_op {
  static constexpr bool rows_are_keys = Of != gradient::of_q;
  static constexpr bool sums_x = Of != gradient::of_v, sums_y = Of == gradient::of_v || Of == gradient::of_k_and_v;
  using call_params = backward_params<T, T, G, Mask, Score>;
  using head_type = typename call_params::head;
  static constexpr int max_threads = Tile::warps * 32, min_blocks = Tile::min_blocks;
  static constexpr int block_m = Tile::rows;  // rows of a work tile
  static constexpr int columns = Tile::columns, warp_rows = Tile::rows / Tile::warps;
  static constexpr int width_x = round_up(HeadSize, 16), width_y = round_up(HeadSizeV, 16);

  // A row is an odd number of 16-byte units, so ldmatrix reads 8 rows from different banks for every head size.
  template <int Rows, int Columns>
  using tile = shared_tile<T, tile_shape<Rows, Columns>, padded<8>>;
  struct moving_tiles {
    tile<columns, width_x> x;
    tile<columns, width_y> y;
  };
  // The head's views are in shared memory, so that they take no registers.
  struct shared_storage {
    tile<block_m, width_x> a;
    stdlib::conditional_t<sums_x, tile<block_m, width_y>, nothing> b;
    moving_tiles moving[Tile::stages];
    stdlib::conditional_t<rows_are_keys, row_terms[Tile::stages][columns], nothing> terms;  // of the moving queries
    int has_nan;
    uninitialized<head_type> head;
  };
  struct params {
    call_params call;
    attention_schedule schedule;
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    const attention_schedule::work_tile at = p.schedule.at(p.schedule.first + block.block_rank());
    const int64 tiles = p.schedule.query_tiles;
    if constexpr (rows_are_keys) {
      // The first keys come first: under a causal mask they have the most queries.
      const int rows = p.call.keys_of(at.batch);
      for (int64 n = tiles - 1 - at.tile; n * block_m < rows; n += tiles)
        key_tile(block, p.call, at.batch, at.head, static_cast<int>(n) * block_m, rows, s);
    } else {
      const auto end = p.call.end_of(at.batch, at.head);
      for (int batch = at.batch; batch < end.sequence; ++batch)
        for (int head = at.head; head < end.head; ++head) {
          put_head(block, p.call, batch, head, s);
          for (int64 n = at.tile; n * block_m < s.head.get().queries(); n += tiles)
            query_tile(block, p.call, static_cast<int>(n) * block_m, s);
        }
    }
  }

 private:
  using map_of_scores = warp_map<warp_rows, columns>;
  using scores_tile = register_tile<float, map_of_scores>;
  using steps_type = score_steps<Mask, Score>;
  struct sums_tiles {
    stdlib::conditional_t<sums_x, warp_tile<warp_rows, width_x>, nothing> x;
    stdlib::conditional_t<sums_y, warp_tile<warp_rows, width_y>, nothing> y;
    parameter_sums<map_of_scores, Of == gradient::of_q ? call_params::parameters : 0> parameters;

    GIWA_DEVICE void clear() {
      if constexpr (sums_x) x.fill(0);
      if constexpr (sums_y) y.fill(0);
    }
    /// Whether the block's sums have a NaN.
    template <class Block>
    GIWA_DEVICE bool have_nan(const Block& block, int& has_nan) const {
      bool any = false;
      if constexpr (sums_x) any = any_is_nan(block, x, has_nan);
      if constexpr (sums_x && sums_y) block.sync();  // all threads have read has_nan
      if constexpr (sums_y) any |= any_is_nan(block, y, has_nan);
      return any;
    }
  };

  template <class Block>
  GIWA_DEVICE static void put_head(const Block& block, const call_params& p, int batch, int head, shared_storage& s) {
    block.sync();  // all threads are done with the head before
    if (block.rank() == 0) s.head.put(p.call.at(batch, head));
    block.sync();
  }

  // Usually one pass. A weight is 0 where the mask drops the score, but 0 times NaN or infinity is NaN. So a block whose
  // sums have a NaN runs a second pass, which removes such rows from the products (mark_nonfinite). The other rows get the
  // same bits in it.
  template <class Block>
  GIWA_DEVICE static void query_tile(const Block& block, const call_params& p, int first, shared_storage& s) {
    sums_tiles sums;
#pragma unroll 1
    for (bool careful = false;; careful = true) {
      block.sync();  // all threads are done with the tiles of the pass before, and have read has_nan
      sums.clear();
      add_head(block, p, first, careful, sums, s);
      if (careful || !sums.have_nan(block, s.has_nan)) break;
    }
    sums.parameters.store(block, block.lane(), p, s.head.get(), first + block.warp() * warp_rows);
    if (!is_absent(p.views.dq))
      store_sums(block, sums.x, p.query_rows(p.views.dq, s.head.get()), first, p.call.scale, p);
  }

  /// One tile of the keys of key sequence n and a head of k: the sum over all sequences and heads of q that read them.
  template <class Block>
  GIWA_DEVICE static void key_tile(const Block& block, const call_params& p, int n, int kv_head, int first, int rows,
                                   shared_storage& s) {
    sums_tiles sums;
    const int group = p.call.heads_per_kv;
#pragma unroll 1
    for (bool careful = false;; careful = true) {
      sums.clear();
      for (int b = p.first_reader(n); b < p.end_reader(n); ++b) {
        if (!p.is_reader(b, n)) continue;
        for (int i = 0; i < group; ++i) {
          put_head(block, p, b, kv_head * group + i, s);
          if (first < s.head.get().keys()) add_head(block, p, first, careful, sums, s);
        }
      }
      if (careful || !sums.have_nan(block, s.has_nan)) break;
    }
    // The head in shared memory is of the last reader, which may have fewer keys; its rows start where all start.
    const head_type& h = s.head.get();
    if constexpr (sums_x)
      if (!is_absent(p.views.dk)) store_sums(block, sums.x, p.key_rows(p.views.dk, h, rows), first, p.call.scale, p);
    if constexpr (sums_y)
      if (!is_absent(p.views.dv)) store_sums(block, sums.y, p.key_rows(p.views.dv, h, rows), first, 1, p);
  }

  /// Adds what the fixed rows from `first` on get from the moving rows of the head in shared memory. The block has passed
  /// a barrier since it last used the tiles.
  template <class Block>
  GIWA_DEVICE static void add_head(const Block& block, const call_params& p, int first, bool careful, sums_tiles& sums,
                                   shared_storage& s) {
    const head_type& h = s.head.get();
    constexpr tile_axis moving = rows_are_keys ? tile_axis::queries : tile_axis::keys;
    const visible_tiles<Mask, moving> tiles(p.call.mask, h, first, block_m, columns);
    const auto dout = [&] { return p.query_rows(p.views.dout, h); };
    if constexpr (rows_are_keys) {
      load_async(block, h.k, {first, 0}, s.a);
      if constexpr (sums_x) load_async(block, h.v, {first, 0}, s.b);
    } else {
      load_async(block, h.q, {first, 0}, s.a);
      load_async(block, dout(), {first, 0}, s.b);
    }
    row_terms own[map_of_scores::rows];
    if constexpr (!rows_are_keys) load_terms(p, h, first + block.warp() * warp_rows, block.lane(), own);
    // With two stages the next tile is loaded during the products of this one, otherwise after them.
    int stage = 0;
    for (int n = -1, next = tiles.next(0);;) {
      if (next < tiles.count()) {
        const giwa::index<2> origin{int64{next} * columns, 0};
        moving_tiles& to = s.moving[stage];
        if constexpr (rows_are_keys) {
          load_async(block, h.q, origin, to.x);
          load_async(block, dout(), origin, to.y);
          load_terms_async(block, p, h, next * columns, s.terms[stage]);
        } else {
          load_async(block, h.k, origin, to.x);
          load_async(block, h.v, origin, to.y);
        }
      }
      copy_commit();
      if constexpr (Tile::stages == 2)
        if (n >= 0) add_tile(block, p, h, tiles.keep(n), first, n * columns, careful, sums, stage ^ 1, own, s);
      n = next;
      if (n >= tiles.count()) break;
      next = tiles.next(n + 1);
      copy_wait();
      block.sync();  // tile n has arrived, and all warps are done with the tile before
      if constexpr (Tile::stages == 1) {
        add_tile(block, p, h, tiles.keep(n), first, n * columns, careful, sums, 0, own, s);
        block.sync();
      } else {
        stage ^= 1;
      }
    }
    copy_wait();
  }

  /// One tile of moving rows from `begin` on.
  template <class Block>
  GIWA_DEVICE static void add_tile(const Block& block, const call_params& p, const head_type& h, tile_keep keep,
                                   int first, int begin, bool careful, sums_tiles& sums, int stage,
                                   const row_terms (&own)[map_of_scores::rows], shared_storage& s) {
    const int lane = block.lane(), warp_row = block.warp() * warp_rows;
    keep = keep_of_reader(p, h, keep, rows_are_keys ? first + block_m : 0);
    moving_tiles& in = s.moving[stage];
    const bool scrubs = careful && keep == tile_keep::some;
    if (scrubs) {
      mark_nonfinite<sums_y>(block, in.x, in.y);
      block.sync();
    }
    scores_tile scores, dp;
    scores.fill(0);
    multiply_add(lane, scores, s.a, warp_row, transposed(in.x), 0);
    if constexpr (sums_x) {
      dp.fill(0);
      multiply_add(lane, dp, s.b, warp_row, transposed(in.y), 0);
    }
    if (scrubs) {
      block.sync();
      clear_marked<sums_y>(block, in.x, in.y);
      block.sync();
    }
    const steps_type steps{p.call.mask, p.call.score, p.call.scale};
    const typename steps_type::bounds bounds(h);
    const row_terms* of_columns = nullptr;
    if constexpr (rows_are_keys) of_columns = s.terms[stage];
    if (keep == tile_keep::all)
      weigh<Of, false>(block, steps, bounds, careful, first + warp_row, begin, scores, dp, own, of_columns,
                       sums.parameters);
    else
      weigh<Of, true>(block, steps, bounds, careful, first + warp_row, begin, scores, dp, own, of_columns,
                      sums.parameters);
    uint32 operand[map_of_scores::registers / 2];
    if constexpr (sums_y) {
      to_operand<T>(scores, operand);
      multiply_add(lane, sums.y, operand, in.y, 0);
    }
    if constexpr (sums_x) {
      to_operand<T>(dp, operand);
      multiply_add(lane, sums.x, operand, in.x, 0);
    }
  }

  /// The terms of a thread's rows, with the lse in powers of two; those of a row that does not exist give P = 0.
  GIWA_DEVICE static void load_terms(const call_params& p, const head_type& h, int first, int lane,
                                     row_terms (&to)[map_of_scores::rows]) {
    GIWA_UNROLL
    for (int slot = 0; slot < map_of_scores::rows; ++slot) {
      const int query = first + map_of_scores::row(lane, slot);
      to[slot] = {infinity_of<float>, 0};
      if (query < h.queries()) to[slot] = p.terms_at(h.sequence, h.head, h.first_query_row + query);
      to[slot].lse *= log2_e<float>;
    }
  }
  /// Starts the copy of the terms of the moving queries.
  template <class Block>
  GIWA_DEVICE static void load_terms_async(const Block& block, const call_params& p, const head_type& h, int first,
                                           row_terms (&to)[columns]) {
    for (int i = block.rank(); i < columns; i += max_threads) {
      if (first + i < h.queries())
        arch::copy_async<8>(arch::shared_address(&to[i]),
                            &p.terms_at(h.sequence, h.head, h.first_query_row + first + i));
      else
        to[i] = {infinity_of<float>, 0};
    }
  }

  template <class Block, class Map>
  GIWA_DEVICE static void store_sums(const Block& block, register_tile<float, Map>& sums, const tensor_view<G, 2>& to,
                                     int first, float factor, const call_params& p) {
    store_gradient(block, block.lane(), sums, to, first + block.warp() * warp_rows, factor, p.accumulate);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
