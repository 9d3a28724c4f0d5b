// SPDX-License-Identifier: MIT
// The gradients of attention by FMA instructions in fp32: every element type, head size and GPU, and the host executor.
#ifndef GIWA_ATTENTION_KERNELS_SIMT_BACKWARD_SIMT_CUH
#define GIWA_ATTENTION_KERNELS_SIMT_BACKWARD_SIMT_CUH

#include <giwa/attention/kernels/simt/forward_simt.cuh>
#include <giwa/attention/kernels/simt/row_terms.cuh>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/problem/score_gradient.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The tile sizes of the kernels. A block has 64 rows of its gradient, and 64 rows of the other side pass by. A thread has
/// 4 of the rows, every 16th, and of each of them every 8th or 16th score and column. Operands of S and dP are loaded in
/// slices of the head size, those of the gradient in slices of rows.
///
/// Registers on sm_90 (nvcc 13.0, 2026-11-23) are 168 at most at a head size of 64, 254 at 128 and 236 at 256, and nothing
/// spills on sm_75, 80 and 90 up to there; at 512 a kernel of fp16 spills 28 bytes. H200, fp16, causal, 4 x 4096 tokens:
/// 15 TFLOP/s, counted as 2.5 times the forward pass.
template <int Width>
struct simt_backward_tile {
  static constexpr int rows = 64, columns = 64, thread_rows = 16, thread_columns = Width <= 128 ? 8 : 16;
  static constexpr int threads = thread_rows * thread_columns;
  // S, dP and the sums are in registers together: 96 of a thread at a width of 64, 128 at 128, 96 at 256, 160 at 512.
  static constexpr int min_blocks = Width <= 64 ? 3 : Width <= 128 ? 2 : 1;
  // Consecutive sums of a thread: 4, or 2 or 1 if more would round the width up further.
  GIWA_HOST_DEVICE static constexpr int rounded(int run) { return round_up(Width, thread_columns * run); }
  static constexpr int run = rounded(4) == rounded(1) ? 4 : rounded(2) == rounded(1) ? 2 : 1;
  static constexpr int outputs = rounded(run);
  // Rows per slice of the operand of the gradient: at most 16 KiB, and at most 64 rows.
  static constexpr int value_rows = outputs <= 64 ? 64 : outputs <= 128 ? 32 : outputs <= 256 ? 16 : 8;
};

/// One gradient: dq by tiles of queries, dk or dv by tiles of keys. The tile's rows are fixed, and tiles of the other axis
/// pass by. With fixed rows a and b and moving rows x and y (q, dout, k, v for dq; k, v, q, dout for dk and dv):
///   S = a x^T,  dP = b y^T,  P = e^(score(S) - lse),  dS = P (dP - delta) slope,
///   dq or dk = scale * sum of dS x,  dv = sum of P y.
/// S and P are computed by each of the three kernels, so that one block sums a gradient in a fixed order, without atomics
/// and without memory for partial sums.
template <class T, class O, class G, int HeadSize, int HeadSizeV, gradient Of, class Mask, class Score>
struct simt_backward_op {
  static constexpr bool rows_are_keys = Of != gradient::of_q;
  static constexpr int width = Of == gradient::of_v ? HeadSizeV : HeadSize;
  using cut = simt_backward_tile<width>;
  using call_params = backward_params<T, O, G, Mask, Score>;
  using head_type = typename call_params::head;
  static constexpr int max_threads = cut::threads, min_blocks = cut::min_blocks;
  static constexpr int block_m = cut::rows;  // rows of a work tile

  // Slices of at most 40 columns, a multiple of 16 bytes of each type. Padding puts the rows that a warp reads at once
  // into different banks.
  template <int Size>
  struct operands {
    static constexpr int slices = ceil_div(Size, 40), slice = round_up(ceil_div(Size, slices), 8);
    using tile = shared_tile<float, tile_shape<64, slice>, padded<cut::thread_columns == 8 ? 4 : 2>>;
    tile fixed, moving;  // (rows, slice of the head size)
  };
  using value_tile = shared_tile<float, tile_shape<cut::value_rows, cut::outputs>>;
  struct shared_storage {
    union {
      operands<HeadSize> ax;
      operands<HeadSizeV> by;
      value_tile values;  // (moving rows of a slice, columns)
    } tiles;
    // P or dS, (fixed rows, moving rows). A warp writes 2 or 4 rows of it at once, and padding puts them into different banks.
    shared_tile<float, tile_shape<cut::rows, cut::columns>, padded<cut::thread_columns>> weights;
    row_terms terms[64];  // of the tile's queries
    int has_nan;
    uninitialized<head_type> head;  // in shared memory, because its views would take 40 registers
  };
  static_assert(sizeof(shared_storage) <= 48 << 10, "what every GPU has without asking");
  struct params {
    call_params call;
    attention_schedule schedule;
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    const attention_schedule::work_tile at = p.schedule.at(p.schedule.first + block.block_rank());
    const int64 tiles = p.schedule.query_tiles;
    if constexpr (rows_are_keys) {
      // The first keys come first: under a causal mask they have the most queries.
      const int rows = p.call.keys_of(at.batch);
      for (int64 tile = tiles - 1 - at.tile; tile * block_m < rows; tile += tiles)
        key_tile(block, p.call, at.batch, at.head, static_cast<int>(tile) * block_m, rows, s);
    } else {
      const auto end = p.call.end_of(at.batch, at.head);
      for (int batch = at.batch; batch < end.sequence; ++batch)
        for (int head = at.head; head < end.head; ++head) {
          put_head(block, p.call, batch, head, s);
          for (int64 tile = at.tile; tile * block_m < s.head.get().queries(); tile += tiles)
            query_tile(block, p.call, static_cast<int>(tile) * block_m, s);
        }
    }
  }

 private:
  using map_of_scores = thread_map<tile_shape<cut::rows, cut::columns>, cut::thread_rows, cut::thread_columns>;
  using map_of_sums = thread_map<tile_shape<cut::rows, cut::outputs>, cut::thread_rows, cut::thread_columns, cut::run>;
  using scores_tile = register_tile<float, map_of_scores>;
  using sums_tile = register_tile<float, map_of_sums>;
  using parameters_type = parameter_sums<map_of_scores, Of == gradient::of_q ? call_params::parameters : 0>;
  using steps_type = score_steps<Mask, Score>;

  /// Returns the view with its width as a constant, which takes no registers and no instructions.
  template <int Width, class V>
  GIWA_HOST_DEVICE static tensor_view<V, 2> of_width(const tensor_view<V, 2>& v) {
    return {v.data(), {v.extent(0), Width}, {v.stride(0), 1}};
  }

  template <class Block>
  GIWA_HOST_DEVICE static void put_head(const Block& block, const call_params& p, int batch, int head,
                                        shared_storage& s) {
    block.sync();  // all threads are done with the head before
    if (block.rank() == 0) s.head.put(p.call.at(batch, head));
    block.sync();
  }

  template <class Block>
  GIWA_HOST_DEVICE static void query_tile(const Block& block, const call_params& p, int first, shared_storage& s) {
    sums_tile sums;
    parameters_type parameters;
    // Usually one pass. A weight is 0 where the mask drops the score, but 0 times NaN or infinity is NaN. So a block whose
    // sums have a NaN runs a second pass, which skips these products. The other rows get the same bits in it.
    for (bool careful = false;; careful = true) {
      block.sync();  // all threads have read has_nan of the pass before
      sums.fill(0);
      add_head(block, p, first, careful, sums, parameters, s);
      if (careful || !any_is_nan(block, sums, s.has_nan)) break;
    }
    const head_type& h = s.head.get();
    parameters.store(block, block.rank(), p, h, first);
    if (!is_absent(p.views.dq))
      store(block.rank(), sums, p.query_rows(p.views.dq, h), first, p.call.scale, p.accumulate);
  }

  /// One tile of the keys of key sequence n and a head of k: the sum over all sequences and heads of q that read them.
  template <class Block>
  GIWA_HOST_DEVICE static void key_tile(const Block& block, const call_params& p, int n, int kv_head, int first,
                                        int rows, shared_storage& s) {
    sums_tile sums;
    const int group = p.call.heads_per_kv;
    for (bool careful = false;; careful = true) {
      block.sync();  // all threads have read has_nan of the pass before
      sums.fill(0);
      for (int b = p.first_reader(n); b < p.end_reader(n); ++b) {
        if (!p.is_reader(b, n)) continue;
        for (int i = 0; i < group; ++i) {
          put_head(block, p, b, kv_head * group + i, s);
          parameters_type none;
          if (first < s.head.get().keys()) add_head(block, p, first, careful, sums, none, s);
        }
      }
      if (careful || !any_is_nan(block, sums, s.has_nan)) break;
    }
    // The head in shared memory is of the last reader, which may have fewer keys; its rows start where all start.
    const auto to =
        Of == gradient::of_k ? p.key_rows(p.views.dk, s.head.get(), rows) : p.key_rows(p.views.dv, s.head.get(), rows);
    store(block.rank(), sums, to, first, Of == gradient::of_k ? p.call.scale : 1.0f, p.accumulate);
  }

  /// Adds what the fixed rows from `first` on get from the moving rows of the head in shared memory.
  template <class Block>
  GIWA_HOST_DEVICE static void add_head(const Block& block, const call_params& p, int first, bool careful,
                                        sums_tile& sums, parameters_type& parameters, shared_storage& s) {
    const head_type& h = s.head.get();
    const int thread = block.rank();
    const steps_type steps{p.call.mask, p.call.score, p.call.scale};
    const typename steps_type::bounds bounds(h);
    constexpr tile_axis moving = rows_are_keys ? tile_axis::queries : tile_axis::keys;
    const visible_tiles<Mask, moving> tiles(p.call.mask, h, first, cut::rows, cut::columns);
    const int length = rows_are_keys ? bounds.queries : bounds.keys;
    if constexpr (!rows_are_keys) load_terms(block, p, h, first, s);
    for (int n = tiles.next(0); n < tiles.count(); n = tiles.next(n + 1)) {
      const int begin = n * cut::columns;
      const tile_keep keep = keep_of_reader(p, h, tiles.keep(n), rows_are_keys ? first + cut::rows : 0);
      if constexpr (rows_are_keys) load_terms(block, p, h, begin, s);
      put_weight_factors<rows_are_keys>(block, p.call.score, h, first, begin, kept_scale(p.call.score), s.weights);
      scores_tile scores;
      multiply<HeadSize>(block, rows_are_keys ? h.k : h.q, first, rows_are_keys ? h.q : h.k, begin, scores, s.tiles.ax);
      if constexpr (Of == gradient::of_v) {
        weigh(thread, p, steps, bounds, keep, careful, first, begin, scores, scores, parameters, s);
      } else {
        scores_tile dp;
        if constexpr (rows_are_keys)
          multiply<HeadSizeV>(block, h.v, first, p.query_rows(p.views.dout, h), begin, dp, s.tiles.by);
        else
          multiply<HeadSizeV>(block, p.query_rows(p.views.dout, h), first, h.v, begin, dp, s.tiles.by);
        weigh(thread, p, steps, bounds, keep, careful, first, begin, scores, dp, parameters, s);
      }

      for (int slice = 0; slice < cut::columns && slice < length - begin; slice += cut::value_rows) {
        load_values(block, p, h, begin + slice, s.tiles.values);
        copy_wait();
        block.sync();  // the weights and the values are complete
        if (careful && keep == tile_keep::some)
          add_kept_products(thread, sums, s.weights, slice, s.tiles.values, [&](int row, int column) {
            return keeps(steps, bounds, first + row, begin + slice + column);
          });
        else
          multiply_add(thread, sums, s.weights, slice, s.tiles.values);
        block.sync();  // all threads are done with them
      }
    }
  }

  GIWA_HOST_DEVICE static bool keeps(const steps_type& steps, const typename steps_type::bounds& b, int fixed,
                                     int moving) {
    return rows_are_keys ? steps.keeps(b, moving, fixed) : steps.keeps(b, fixed, moving);
  }

  /// Copies the terms of 64 queries to shared memory. A barrier follows before they are read, in multiply().
  template <class Block>
  GIWA_HOST_DEVICE static void load_terms(const Block& block, const call_params& p, const head_type& h, int first,
                                          shared_storage& s) {
    for (int i = block.rank(); i < 64; i += max_threads)
      s.terms[i] = first + i < h.queries() ? p.terms_at(h.sequence, h.head, h.first_query_row + first + i)
                                           : row_terms{infinity_of<float>, 0.0f};
  }

  /// Turns scores into P for dv, or into dS, and writes them to shared memory.
  GIWA_HOST_DEVICE static void weigh(int thread, const call_params& p, const steps_type& steps,
                                     const typename steps_type::bounds& b, tile_keep keep,
                                     [[maybe_unused]] bool careful, int first, int begin, const scores_tile& scores,
                                     const scores_tile& dp, [[maybe_unused]] parameters_type& parameters,
                                     shared_storage& s) {
    GIWA_UNROLL
    for (int i = 0; i < map_of_scores::registers; ++i) {
      const int row = map_of_scores::row(thread, map_of_scores::slot(i)), column = map_of_scores::column(thread, i);
      const int query = rows_are_keys ? begin + column : first + row,
                key = rows_are_keys ? first + row : begin + column;
      const bool inside = b.contain(query, key);
      const float factor = drops_weights<Score> ? s.weights(row, column) : 1.0f;
      float weight = 0;
      if (inside && (keep != tile_keep::some || steps.mask(b.place(query, key)))) {
        const row_terms t = s.terms[rows_are_keys ? column : row];
        const float z = device_product(scores.value[i], steps.scale);
        const dual<float> y = modified_score(steps.score, z, b.place(query, key));
        weight = device_exponential{}(y.value - t.lse) * (Of == gradient::of_v ? factor : 1.0f);
        if constexpr (Of != gradient::of_v) {
          const float dy = weight * (dp.value[i] * factor - t.delta);
          if constexpr (Of == gradient::of_q)  // once: the first pass has given those of kept pairs
            if (!careful)
              gradient_of<Score>::give(p.call.score, dy, z, b.place(query, key), parameters.of(map_of_scores::slot(i)));
          weight = dy * y.slope;
        }
      }
      s.weights(row, column) = weight;
    }
  }

  /// Computes fixed moving^T, summed in the order of the head size. Returns when all threads are done with the tiles.
  template <int Size, class Block, class Fixed, class Moving>
  GIWA_HOST_DEVICE static void multiply(const Block& block, const tensor_view<Fixed, 2>& fixed, int first,
                                        const tensor_view<Moving, 2>& moving, int begin, scores_tile& scores,
                                        operands<Size>& tiles) {
    scores.fill(0);
    for (int column = 0; column < Size; column += operands<Size>::slice) {
      load_async(block, of_width<Size>(fixed), {first, column}, tiles.fixed);
      load_async(block, of_width<Size>(moving), {begin, column}, tiles.moving);
      copy_commit();
      copy_wait();
      block.sync();
      multiply_add(block.rank(), scores, tiles.fixed, transposed(tiles.moving));
      block.sync();
    }
  }

  template <class Block>
  GIWA_HOST_DEVICE static void load_values(const Block& block, const call_params& p, const head_type& h, int first,
                                           value_tile& tile) {
    if constexpr (Of == gradient::of_q)
      load_async(block, of_width<width>(h.k), {first, 0}, tile);
    else if constexpr (Of == gradient::of_k)
      load_async(block, of_width<width>(h.q), {first, 0}, tile);
    else
      load_async(block, of_width<width>(p.query_rows(p.views.dout, h)), {first, 0}, tile);
    copy_commit();
  }

  /// Stores the sums times `factor`. + 0 makes -0 positive, so that the result does not depend on masked scores.
  GIWA_HOST_DEVICE static void store(int thread, const sums_tile& sums, const tensor_view<G, 2>& to, int first,
                                     float factor, bool accumulate) {
    GIWA_UNROLL
    for (int i = 0; i < map_of_sums::registers; ++i) {
      const int64 row = first + map_of_sums::row(thread, map_of_sums::slot(i));
      const int column = map_of_sums::column(thread, i);
      if (row >= to.extent(0) || column >= width) continue;
      G& at = to.data()[row * to.stride(0) + column];
      const float x = sums.value[i] * factor + 0.0f;
      at = convert<G>{}(accumulate ? convert<float>{}(at) + x : x);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
