// SPDX-License-Identifier: MIT
// Attention to a cache by FMA instructions in fp32: every element type, head size and GPU, and the host executor.
#ifndef GIWA_ATTENTION_KERNELS_SIMT_CACHED_SIMT_CUH
#define GIWA_ATTENTION_KERNELS_SIMT_CACHED_SIMT_CUH

#include <giwa/attention/append/rotated_queries.hpp>
#include <giwa/attention/problem/cached_rows.hpp>
#include <giwa/attention/problem/traits.hpp>
#include <giwa/attention/score/score_steps.cuh>
#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/attention/sums/row_sums.cuh>
#include <giwa/grid/op.hpp>
#include <giwa/numeric/vector_access.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Reads `Count` neighbouring elements of a row of keys or values from column `first` on, those past the row's `Width`
/// as 0.
template <int Width, int Count, class Element>
GIWA_HOST_DEVICE void read_elements(const cached_row<Element>& row, int first, float (&to)[Count]) {
  struct vector {
    Element element[Count];
  };
  if (row.data == nullptr) {
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) to[i] = 0;
    return;
  }
  [[maybe_unused]] const Element* const from = row.data + first;
  if constexpr (codes_of<Element> > 1 || row_format<Element>) {
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) to[i] = first + i < Width ? number_of_row<float>(row.data, first + i) : 0.f;
  } else if (first + Count <= Width && reinterpret_cast<uint64>(from) % sizeof(vector) == 0) {
    const auto x = load_vector<vector>(from);
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) to[i] = convert<float>{}(x.element[i]);
  } else {
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) to[i] = first + i < Width ? convert<float>{}(from[i]) : 0.f;
  }
  if constexpr (element_traits<Element>::has_scales) {
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) to[i] = device_product(to[i], row.scale);
  }
}

/// A block computes one row of o: its warps take 32 keys each in turn, and their results are merged at the end. A lane has
/// one key of S = Q K^T, and columns of O = P V. Which warp has a key depends on its number alone, so the bits of a row
/// depend on the row's own inputs alone.
template <class T, class Element, class O, int HeadSize, int HeadSizeV, class Mask, class Score>
struct cached_simt_op {
  static constexpr int warps = 8, max_threads = 32 * warps, min_blocks = 1;

  using params = cached_params<T, Element, O, Mask, Score>;
  static constexpr bool params_go_as_bytes = goes_as_bytes<Mask> && goes_as_bytes<Score>;
  struct shared_storage {
    float q[round_up(HeadSize, 16)];  // 0 past the head size
    float m[warps], l[warps];
    float o[warps][HeadSizeV];
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    const auto& q = p.views.q;
    for (int64 i = block.block_rank(), all = rows_of_heads(p); i < all; i += block.block_count()) {
      const int64 row = i / q.extent(2);
      const int sequence = sequence_of(p, row);
      if (sequence < 0) continue;
      const auto head = head_of(p, sequence, static_cast<int>(i - row * q.extent(2)));
      if constexpr (params::selects) {
        if (head.queries() > 0) one_row(block, head, 0, s);
        continue;
      }
      const int64 first = p.views.is_packed() ? head.sequence.first_query_row : sequence * q.extent(1);
      one_row(block, head, static_cast<int>(row - first), s);
    }
  }

  /// The rows of all heads of q, each of which a block computes; rows in no sequence are left alone.
  GIWA_HOST_DEVICE static int64 rows_of_heads(const params& p) {
    const auto& q = p.views.q;
    return q.extent(0) * q.extent(1) * q.extent(2);
  }

 private:
  using head_type = cached_head<params>;
  using rows_type = cached_head_rows<T, Element, O, params>;

  // A lane has runs of neighbouring columns of O, one every 32 * run columns.
  static constexpr int run = HeadSizeV > 64 ? 4 : HeadSizeV > 32 ? 2 : 1;
  static constexpr int runs = ceil_div(HeadSizeV, 32 * run);

  /// The softmax state of a warp's keys: m in units of log2, this lane's part of l, this lane's columns of O.
  struct state {
    float m = -infinity_of<float>, l = 0;
    float o[runs][run] = {};
  };

  /// The sequence of a row of q, -1 for none.
  GIWA_HOST_DEVICE static int sequence_of(const params& p, int64 row) {
    if constexpr (params::selects) return static_cast<int>(row);
    return static_cast<int>(p.views.is_packed() ? sequence_of_row(p.views.packed, row) : row / p.views.q.extent(1));
  }

  template <class Block>
  GIWA_HOST_DEVICE static void one_row(const Block& block, const head_type& h, int query, shared_storage& s) {
    const rows_type rows = rows_of(h);
    const auto element = [&](int d) {
      if constexpr (rotates_queries<Score>)
        return rotated_element(rows.q[query], d, h.params->score.rotary,
                               position_of_query(*h.params, h.sequence, query));
      else
        return rows.q[query][d];
    };
    for (int d = block.rank(); d < round_up(HeadSize, 16); d += max_threads)
      s.q[d] = d < HeadSize ? convert<float>{}(element(d)) : 0.f;
    block.sync();
    state x;
    for (int first = 32 * block.warp(); first < h.keys(); first += max_threads) {
      const int last = first + 31 < h.keys() ? first + 31 : h.keys() - 1;
      const tile_keep keep = classify(h.params->mask, score_tile{h.batch, h.head, query, query, first, last, h.offset});
      if (keep != tile_keep::none) add_keys(block, h, rows, query, first, keep, s.q, x);
    }
    for (int distance = 16; distance > 0; distance /= 2) x.l += block.shuffle_xor(x.l, distance);
    if (block.lane() == 0) s.m[block.warp()] = x.m, s.l[block.warp()] = x.l;
    for_columns(block, [&](int r, int i, int column) { s.o[block.warp()][column] = x.o[r][i]; });
    block.sync();
    store_row(block, h, rows, query, s);
  }

  /// f(run, element, column) for the columns of a lane.
  template <class Block, class F>
  GIWA_HOST_DEVICE static void for_columns(const Block& block, const F& f) {
    GIWA_UNROLL
    for (int r = 0; r < runs; ++r) GIWA_UNROLL
    for (int i = 0; i < run; ++i)
      if (const int column = (32 * r + block.lane()) * run + i; column < HeadSizeV) f(r, i, column);
  }

  /// Adds 32 keys, or those up to the end.
  template <class Block>
  GIWA_HOST_DEVICE static void add_keys(const Block& block, const head_type& h, const rows_type& rows, int query,
                                        int first, tile_keep keep, const float* q, state& x) {
    const params& p = *h.params;
    const score_steps<Mask, Score> steps{p.mask, p.score, p.scale};
    const int key = first + block.lane();
    const attention_coord at{h.batch, h.head, query, key, query + h.offset};
    const bool visible = key < h.keys() && (keep == tile_keep::all || p.mask(at));
    float score = -infinity_of<float>;
    cached_row<Element> v{nullptr, 0};
    if (visible) {
      score = product_with(rows.k[key], q);
      if (steps.scale_first()) score = p.score(device_product(score, p.scale), at);
      v = rows.v[key];
    }
    float largest = score;
    for (int distance = 16; distance > 0; distance /= 2)
      largest = larger_of(largest, block.shuffle_xor(largest, distance));
    const float of_these = largest == -infinity_of<float>
                               ? largest
                               : reference_of(largest, steps.scale_log2(), 0);  // no weight is above 1
    const float m = larger_of(x.m, of_these), reference = m == -infinity_of<float> ? 0.f : m;
    const float factor = exp2_of(x.m - reference);
    const row_exponents e = row_exponents::of<0>(largest, steps.scale_log2());
    float weight = exp2_of(fused_multiply_add(score, steps.scale_log2(), -reference));
    if (e.scale != steps.scale_log2()) weight = exp2_of(e(score)) * exp2_of(of_these - reference);
    if (!visible) weight = 0;
    x.m = m;
    x.l = fused_multiply_add(x.l, factor, weight);
    for_columns(block, [&](int r, int i, int) { x.o[r][i] *= factor; });
    const uint32 seen = block.ballot(visible);
    for (int lane = 0; lane < 32; ++lane)  // values of masked keys are not read, because 0 times NaN is NaN
      if ((seen >> lane & 1) != 0) add_value(block, block.shuffle(weight, lane), block.shuffle(v, lane), x);
  }

  /// q k, in four sums of every fourth product: half the error of one sum, and four times as many products at once.
  GIWA_HOST_DEVICE static float product_with(const cached_row<Element>& k, const float* q) {
    constexpr int count = 16 / static_cast<int>(sizeof(Element));
    float sum[4] = {};
    for (int d = 0; d < HeadSize; d += count) {
      float x[count];
      read_elements<HeadSize>(k, d, x);
      GIWA_UNROLL
      for (int i = 0; i < count; ++i) sum[i % 4] = fused_multiply_add(x[i], q[d + i], sum[i % 4]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  template <class Block>
  GIWA_HOST_DEVICE static void add_value(const Block& block, float weight, const cached_row<Element>& v, state& x) {
    GIWA_UNROLL
    for (int r = 0; r < runs; ++r) {
      const int column = (32 * r + block.lane()) * run;
      if (column >= HeadSizeV) continue;
      float value[run];
      read_elements<HeadSizeV>(v, column, value);
      GIWA_UNROLL
      for (int i = 0; i < run; ++i) x.o[r][i] = fused_multiply_add(weight, value[i], x.o[r][i]);
    }
  }

  /// Merges the states of the warps, and writes the row.
  template <class Block>
  GIWA_HOST_DEVICE static void store_row(const Block& block, const head_type& h, const rows_type& rows, int query,
                                         const shared_storage& s) {
    const params& p = *h.params;
    float l = 0, factor[warps];
    const float m = merge_maxima(s.m, factor);
    GIWA_UNROLL
    for (int w = 0; w < warps; ++w) l = fused_multiply_add(s.l[w], factor[w], l);
    // Scores may be so large that no weight is left of them, though the row has keys.
    if (l == 0 && m != -infinity_of<float>) l = nan_of<float>;
    const float sink = p.sinks == nullptr ? -infinity_of<float> : p.sinks[h.head * p.sink_stride];
    const finished_softmax<float> end = finish_row<float>({m * ln_2<float>, l}, sink, rows.prior_lse(query),
                                                          row_functions<device_exponential, quick_logarithm>{});
    for (int column = block.rank(); column < HeadSizeV; column += max_threads) {
      float x = 0;
      GIWA_UNROLL
      for (int w = 0; w < warps; ++w) x = fused_multiply_add(s.o[w][column], factor[w], x);
      x *= end.factor;
      if (p.has_prior() && end.prior_factor != 0)
        x = fused_multiply_add(convert<float>{}(rows.prior_o[query][column]), end.prior_factor, x);
      rows.o[query][column] = convert<O>{}(x + 0.f);  // + 0 makes -0 positive
    }
    block.sync();  // lse may be the prior's, which all threads have read; and shared memory is free for the next row
    if (block.rank() == 0 && h.lse != nullptr) h.lse[query * h.lse_stride] = end.lse;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
