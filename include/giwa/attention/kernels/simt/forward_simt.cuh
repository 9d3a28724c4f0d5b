// SPDX-License-Identifier: MIT
// Attention by FMA instructions in fp32: every element type, head size and GPU, and the host executor.
#ifndef GIWA_ATTENTION_KERNELS_SIMT_FORWARD_SIMT_CUH
#define GIWA_ATTENTION_KERNELS_SIMT_FORWARD_SIMT_CUH

#include <giwa/attention/score/score_steps.cuh>
#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/attention/work/visible_tiles.hpp>
#include <giwa/attention/work/work_tiles.hpp>
#include <giwa/grid/op.hpp>
#include <giwa/softmax/online.cuh>
#include <giwa/tile/copy.cuh>
#include <giwa/tile/mma.hpp>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The tile sizes of the kernel. A block has 64 queries and processes 64 keys at a time. A thread has 4 of the queries,
/// every 16th, and of each of them every 8th or 16th score and output. Inputs that do not fit into shared memory are
/// loaded in slices: q and k by columns of the head size, v by rows.
///
/// Nothing spills on sm_75, 80 and 90. Registers of a causal fp32 kernel on sm_90 (nvcc 13.0, 2026-11-21):
///   head size            8    33    64   100   128   192   256   320   512
///   registers          127   136   152   244   254   224   255   254   255
/// A block has at most 42 KiB of shared memory. With 256 threads and 128 registers a head size of 256 spills 112 bytes.
template <int HeadSize, int HeadSizeV>
struct simt_attention_tile {
  static constexpr int block_m = 64, block_n = 64, thread_rows = 16;
  static constexpr int thread_columns = HeadSizeV <= 256 ? 8 : 16;
  static constexpr int threads = thread_rows * thread_columns;
  static constexpr int min_blocks = HeadSizeV <= 64 ? 3 : HeadSizeV <= 256 ? 2 : 1;

  // At most 40 columns, and a multiple of 16 bytes of each type.
  static constexpr int slices = ceil_div(HeadSize, 40), slice = round_up(ceil_div(HeadSize, slices), 8);

  // Consecutive outputs of a thread: 4, or 2 or 1 if more would round the head size up further.
  GIWA_HOST_DEVICE static constexpr int rounded(int run) { return round_up(HeadSizeV, thread_columns * run); }
  static constexpr int run = rounded(4) == rounded(1) ? 4 : rounded(2) == rounded(1) ? 2 : 1;
  static constexpr int outputs = rounded(run);
  // Rows of V per slice: at most 16 KiB, and at most 64 rows.
  static constexpr int value_rows = outputs <= 64 ? 64 : outputs <= 128 ? 32 : outputs <= 256 ? 16 : 8;
};

/// Computes o += P V as multiply_add(thread, o, p, first, values) does, but skips the products of masked keys:
/// keeps(row, key) is false for those.
template <class Map, class Probabilities, class Values, class Keeps>
GIWA_HOST_DEVICE void add_kept_products(int thread, register_tile<float, Map>& o, const Probabilities& p, int first,
                                        const Values& values, const Keeps& keeps) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int key = 0; key < Values::rows; ++key) {
    bool kept[Map::rows];
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) kept[r] = keeps(Map::row(thread, r), key);
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; ++i)
      if (kept[Map::slot(i)])
        o.value[i] = multiply_add(p(Map::row(thread, Map::slot(i)), first + key), values(key, Map::column(thread, i)),
                                  o.value[i]);
  }
}

/// Whether the block's sums have a NaN. `has_nan` is in shared memory, and free after the next barrier.
template <class Block, class Map>
GIWA_HOST_DEVICE bool any_is_nan(const Block& block, const register_tile<float, Map>& sums, int& has_nan) {
  bool mine = false;
  GIWA_UNROLL
  for (int i = 0; i < Map::registers; ++i) mine = mine || sums.value[i] != sums.value[i];
  if (block.rank() == 0) has_nan = 0;
  block.sync();
  if (mine) block.atomic_add(has_nan, 1);
  block.sync();
  return has_nan != 0;
}

/// FlashAttention-2 (Dao 2023, algorithm 1). Products, sums and P are in fp32, whatever T is.
template <class T, class O, int HeadSize, int HeadSizeV, class Mask, class Score>
struct simt_attention_op {
  using cut = simt_attention_tile<HeadSize, HeadSizeV>;
  static constexpr int max_threads = cut::threads, min_blocks = cut::min_blocks;
  static constexpr int block_m = cut::block_m, block_n = cut::block_n;
  static constexpr bool has_scales = element_traits<T>::has_scales;

  // 8 or 16 threads read rows of the K slice at once, 8 bytes of each row. Padding puts the rows into different banks.
  template <int Rows>
  using slice_tile = shared_tile<float, tile_shape<Rows, cut::slice>, padded<cut::thread_columns == 8 ? 4 : 2>>;
  struct operands {
    slice_tile<block_m> q;  // (queries, slice of the head size)
    slice_tile<block_n> k;  // (keys, slice of the head size)
  };
  using value_tile = shared_tile<float, tile_shape<cut::value_rows, cut::outputs>>;  // (rows of a slice, columns)
  struct shared_storage {
    union {
      operands qk;
      value_tile v;
    } tiles;
    // (queries, keys). A warp writes 2 or 4 rows of it at once, and padding puts them into different banks.
    shared_tile<float, tile_shape<block_m, block_n>, padded<cut::thread_columns>> p;
    int has_nan;
    uninitialized<attention_head<T, O>> head;  // in shared memory, because its views would take 40 registers
  };
  static_assert(sizeof(shared_storage) <= 48 << 10, "what every GPU has without asking");
  struct params {
    attention_params<T, O, Mask, Score> call;
    attention_schedule schedule;
    const int* only = nullptr;      // (batch, heads): computes the heads whose flag is not 0; null: all heads
    const int* any_only = nullptr;  // 0 if no flag is set
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    if (p.only != nullptr && *p.any_only == 0) return;
    const attention_schedule::work_tile at = p.schedule.at(p.schedule.first + block.block_rank());
    if (p.only != nullptr && p.only[at.batch * p.call.views.q.extent(2) + at.head] == 0) return;
    if (block.rank() == 0) s.head.put(p.call.at(at.batch, at.head));
    block.sync();
    const attention_head<T, O>& head = s.head.get();
    for (int64 tile = at.tile; tile * block_m < head.queries(); tile += p.schedule.query_tiles)
      one_tile(block, p.call, head, static_cast<int>(tile) * block_m, s);
  }

 private:
  using map_of_scores = thread_map<tile_shape<block_m, block_n>, cut::thread_rows, cut::thread_columns>;
  using map_of_output = thread_map<tile_shape<block_m, cut::outputs>, cut::thread_rows, cut::thread_columns, cut::run>;

  /// Returns the view with its width as a constant, which takes no registers and no instructions.
  template <int Width, class V>
  GIWA_HOST_DEVICE static tensor_view<V, 2> of_width(const tensor_view<V, 2>& v) {
    return {v.data(), {v.extent(0), Width}, {v.stride(0), 1}};
  }

  template <class Block>
  GIWA_HOST_DEVICE static void one_tile(const Block& block, const attention_params<T, O, Mask, Score>& call,
                                        const attention_head<T, O>& head, int first_query, shared_storage& s) {
    const int thread = block.rank();
    const score_steps<Mask, Score> steps{call.mask, call.score, call.scale};
    const typename score_steps<Mask, Score>::bounds bounds(head);
    const key_tiles<Mask> keys{call.mask, head, first_query, block_m, block_n};
    online_softmax<map_of_scores> softmax;
    register_tile<float, map_of_output> o;

    // Usually one pass. P is 0 for a masked key, but 0 times NaN or infinity is NaN. So a block whose output has a NaN
    // runs a second pass, which skips the products of masked keys. The other rows get the same bits in it.
    for (bool careful = false;; careful = true) {
      softmax.reset();
      o.fill(0);
      block.sync();  // all threads have read has_nan of the first pass
      for (int n = keys.next(0); n < keys.count(); n = keys.next(n + 1)) {
        const int first_key = n * block_n;
        const tile_keep keep = keys.keep(n);
        register_tile<float, map_of_scores> scores;
        multiply_qk(block, head, first_query, first_key, scores, s.tiles.qk);
        load_v(block, head, first_key, s.tiles.v);
        if constexpr (has_scales)
          scores.for_each(thread, [&](float& x, int row, int column) {
            if (first_query + row < bounds.queries && first_key + column < bounds.keys)
              x *= head.scales.q[first_query + row] * head.scales.k[first_key + column];
          });
        steps.apply(thread, scores, bounds, keep, rows_are_queries{first_query, first_key});

        float factor[map_of_scores::rows];
        softmax.update(block, scores, steps.scale_log2(), factor);
        o.transform_rows(factor, [](float x, float f) { return x * f; });
        if constexpr (drops_weights<Score>) {  // finish_rows() scales the weights that are kept
          put_weight_factors<false>(block, call.score, head, first_query, first_key, 1.0f, s.p);
          block.sync();
          scores.for_each(thread, [&](float& x, int row, int column) { x *= s.p(row, column); });
        }
        scores.for_each(thread, [&](float x, int row, int column) {
          if constexpr (has_scales)  // a key that is not seen has the weight 0, whatever its scale is
            if (x != 0 && first_key + column < bounds.keys) x *= head.scales.v[first_key + column];
          s.p(row, column) = x;
        });

        for (int first = 0; first < block_n && first < bounds.keys - first_key; first += cut::value_rows) {
          if (first > 0) load_v(block, head, first_key + first, s.tiles.v);
          copy_wait();
          block.sync();  // P and V are complete
          if (careful && keep == tile_keep::some)
            add_kept_products(thread, o, s.p, first, s.tiles.v, [&](int row, int key) {
              return steps.keeps(bounds, first_query + row, first_key + first + key);
            });
          else
            multiply_add(thread, o, s.p, first, s.tiles.v);
          block.sync();  // all threads are done with them
        }
      }
      if (careful || !any_is_nan(block, o, s.has_nan)) break;
    }

    float normalizer[map_of_scores::rows], of_earlier[map_of_scores::rows];
    finish_rows(block, thread, softmax, steps.scale_log2(), call, head, first_query, true, normalizer, &of_earlier);
    o.transform_rows(normalizer, [](float x, float f) { return x * f + 0.f; });  // + 0 makes -0 positive
    if constexpr (has_scales) {
      GIWA_UNROLL
      for (int i = 0; i < map_of_output::registers; ++i) {
        const int r = map_of_output::slot(i), column = map_of_output::column(thread, i);
        if (column < HeadSizeV)
          o.value[i] = head.scales.finish(o.value[i], normalizer[r] == 0 ? 0.f : softmax.l[r] * normalizer[r], column);
      }
    }
    if constexpr (is_part<Score>) {
      const part_rows part(call.score, head);
      part.add_earlier(block, thread, first_query, of_earlier, o);
      part.store(thread, o, first_query, 0, block_m);
    } else {
      store(thread, o, of_width<HeadSizeV>(head.o), {first_query, 0});
    }
  }

  /// Computes S = Q K^T, summed in the order of the head size. Returns when all threads are done with the tiles.
  template <class Block>
  GIWA_HOST_DEVICE static void multiply_qk(const Block& block, const attention_head<T, O>& head, int first_query,
                                           int first_key, register_tile<float, map_of_scores>& scores,
                                           operands& tiles) {
    scores.fill(0);
    for (int first = 0; first < HeadSize; first += cut::slice) {
      load_async(block, of_width<HeadSize>(head.q), {first_query, first}, tiles.q);
      load_async(block, of_width<HeadSize>(head.k), {first_key, first}, tiles.k);
      copy_commit();
      copy_wait();
      block.sync();
      multiply_add(block.rank(), scores, tiles.q, transposed(tiles.k));
      block.sync();
    }
  }

  template <class Block>
  GIWA_HOST_DEVICE static void load_v(const Block& block, const attention_head<T, O>& head, int first_key,
                                      value_tile& tile) {
    if (has_scales && head.v.stride(1) != 1)  // K-major
      load_async(block, head.v, {first_key, 0}, tile);
    else
      load_async(block, of_width<HeadSizeV>(head.v), {first_key, 0}, tile);
    copy_commit();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
