// SPDX-License-Identifier: MIT
// What happens to a tile of scores before its softmax, and to a tile of the output after the last: the same on every path.
#ifndef GIWA_ATTENTION_SCORE_STEPS_CUH
#define GIWA_ATTENTION_SCORE_STEPS_CUH

#include <giwa/attention/schedule.hpp>
#include <giwa/softmax/online.cuh>
#include <giwa/tile/element_run.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Scale, score modifier, mask. Where nothing modifies the scores, the scale waits for the softmax, which has it for nothing.
template <class Mask, class Score>
struct score_steps {
  const Mask& mask;
  const Score& score;
  float scale;

  static constexpr bool modified = !stdlib::same_as<Score, plain_score>;
  GIWA_HOST_DEVICE bool scale_first() const { return modified || !(scale > 0); }
  /// What the softmax multiplies the scores by, times log2(e).
  GIWA_HOST_DEVICE float scale_log2() const { return scale_first() ? log2_e<float> : scale * log2_e<float>; }

  /// What the questions about a score are answered from: copied out of the head, which lies in shared memory.
  struct bounds {
    int batch, head, queries, keys, offset;
    template <class T, class O>
    GIWA_HOST_DEVICE explicit bounds(const attention_head<T, O>& h)
        : batch(h.batch), head(h.head), queries(h.queries()), keys(h.keys()), offset(h.offset) {}
    GIWA_HOST_DEVICE bool contain(int query, int key) const { return query < queries && key < keys; }
    GIWA_HOST_DEVICE attention_coord place(int query, int key) const {
      return {batch, head, query, key, query + offset};
    }
  };
  /// Whether a query sees a key; no outside one is shown to the mask.
  GIWA_HOST_DEVICE bool keeps(const bounds& b, int query, int key) const {
    return b.contain(query, key) && mask(b.place(query, key));
  }

  /// Scores of the queries from first_query and the keys from first_key on.
  template <class Map>
  GIWA_HOST_DEVICE void apply(int thread, register_tile<float, Map>& scores, const bounds& b, tile_keep keep,
                              int first_query, int first_key) const {
    if constexpr (modified) {
      scores.for_each(thread, [&](float& x, int row, int column) {
        const int query = first_query + row, key = first_key + column;
        const bool inside = b.contain(query, key);
        if (inside) x = score(device_product(x, scale), b.place(query, key));
        if (!inside || (keep == tile_keep::some && !mask(b.place(query, key)))) x = -infinity_of<float>;
      });
    } else {
      if (keep == tile_keep::all && !scale_first()) return;
      const float first = scale_first() ? scale : 1.f;
      scores.transform([&](float x) { return x * first; });
      if (keep == tile_keep::all) return;
      if constexpr (one_range_mask<Mask>)
        keep_range(thread, scores, b, first_query, first_key);
      else
        scores.for_each(thread, [&](float& x, int row, int column) {
          if (!keeps(b, first_query + row, first_key + column)) x = -infinity_of<float>;
        });
    }
  }
  /// The same where every score lies inside and is kept, and the scale is positive or the scores are modified: without a branch,
  /// unless the modifier has one.
  template <class Map>
  GIWA_HOST_DEVICE void apply_to_whole(int thread, register_tile<float, Map>& scores, const bounds& b, int first_query,
                                       int first_key) const {
    if constexpr (modified)
      scores.for_each(thread, [&](float& x, int row, int column) {
        x = score(device_product(x, scale), b.place(first_query + row, first_key + column));
      });
  }

 private:
  // Masks by each row's first and last key: a score's column is a constant beyond the thread's first, and is compared with them.
  template <class Map>
  GIWA_HOST_DEVICE void keep_range(int thread, register_tile<float, Map>& scores, const bounds& b, int first_query,
                                   int first_key) const {
    const int origin = first_key + Map::column(thread, 0);
    int first[Map::rows], end[Map::rows];
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) {
      const int query = first_query + Map::row(thread, r);
      const attention_coord place = b.place(query < b.queries ? query : b.queries - 1, 0);
      first[r] = 0;
      int last = b.keys - 1;
      if constexpr (has_first_key<Mask>) {
        const int bound = mask.first_key(place);
        first[r] = (bound > first_key ? bound : first_key) - origin;  // below it there is none to compare
      }
      if constexpr (has_last_key<Mask>) {
        const int bound = mask.last_key(place);
        last = bound < last ? bound : last;
      }
      end[r] = query < b.queries && last >= first_key ? last - origin + 1 : 0;
    }
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; ++i) {
      const int column = Map::column(0, i), r = Map::slot(i);
      if (column >= end[r] || (has_first_key<Mask> && column < first[r])) scores.value[i] = -infinity_of<float>;
    }
  }
};

/// What the rows' sums come to at the end: factor[row] for the output, and the log-sum-exps, which those threads write that
/// begin a row, if `write`. All lanes of the warp call it. A sink is one more score, whose value is 0.
template <class Map, int Headroom, class Block, class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE void finish_rows(const Block& block, int thread, online_softmax<Map, Headroom>& softmax,
                                  float scale_log2, const attention_params<T, O, Mask, Score>& call,
                                  const attention_head<T, O>& h, int first_query, bool write,
                                  float (&factor)[Map::rows]) {
  softmax.finish(block);
  GIWA_UNROLL
  for (int r = 0; r < Map::rows; ++r) {
    float lse = softmax.lse(r, scale_log2);
    factor[r] = softmax.normalizer(r);
    if (call.sinks != nullptr) {
      const float sink = call.sinks[h.head * call.sink_stride];
      // With s the sum without the sink: s / (s + e^sink), by the difference of their logarithms.
      const float larger_one = lse > sink ? lse : sink, smaller = lse > sink ? sink : lse;
      const float ratio = smaller == -infinity_of<float> ? 0.f : exp2_of((smaller - larger_one) * log2_e<float>);
      if (factor[r] != 0) factor[r] *= quick_reciprocal(1.f + ratio) * (lse > sink ? 1.f : ratio);
      if (larger_one > -infinity_of<float>) lse = larger_one + quick_log(1.f + ratio);
      if (softmax.l[r] != softmax.l[r] || !(sink < infinity_of<float>)) lse = factor[r] = nan_of<float>;
    }
    const int query = first_query + Map::row(thread, r);
    if (write && h.lse != nullptr && thread % Map::lanes == 0 && query < h.queries()) h.lse[query * h.lse_stride] = lse;
  }
}

/// Whether the bits of an element say infinity or NaN.
template <class T>
GIWA_HOST_DEVICE bool is_non_finite(T x) {
  using bits = stdlib::conditional_t<sizeof(T) == 4, uint32, unsigned short>;
  constexpr bits exponent = stdlib::same_as<T, fp16> ? 0x7c00
                            : sizeof(T) == 2         ? 0x7f80
                                                     : static_cast<bits>(0x7f800000u);
  bits b;
  __builtin_memcpy(&b, &x, sizeof b);
  return (b & exponent) == exponent;
}

/// Whether a thread's share of a 16-bit tile in shared memory holds a NaN or an infinity: 0 times it is NaN then. Shares are in
/// the order of memory, as the place of an element says nothing.
template <int Warps, class Tile>
GIWA_DEVICE bool has_non_finite(int thread, const Tile& tile) {
  using two = decltype(pack<typename Tile::value_type>(0.f, 0.f));
  constexpr int own = Tile::bytes / 16 / (32 * Warps), batch = own % 4 == 0   ? 4
                                                               : own % 3 == 0 ? 3
                                                               : own % 2 == 0 ? 2
                                                                              : 1;
  static_assert(own * Warps * 32 * 16 == Tile::bytes);
  const uint4* const from = reinterpret_cast<const uint4*>(tile.data()) + thread;
  const two zero = pack<typename Tile::value_type>(0.f, 0.f);
  two sum[4] = {zero, zero, zero, zero};
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int i = 0; i < own; i += batch) {
    uint4 read[batch];
    GIWA_UNROLL
    for (int j = 0; j < batch; ++j) read[j] = from[(i + j) * 32 * Warps];
    GIWA_UNROLL
    for (int j = 0; j < batch; ++j) {
      two part[4];
      __builtin_memcpy(part, &read[j], sizeof part);
      GIWA_UNROLL
      for (int k = 0; k < 4; ++k) sum[k] = __hfma2(part[k], zero, sum[k]);
    }
  }
  bool any = false;  // by name, as PyTorch's extensions are built without the operators of 16-bit types
  GIWA_UNROLL
  for (int j = 0; j < 4; ++j) any = any || __hneu(sum[j].x, sum[j].x) || __hneu(sum[j].y, sum[j].y);
  return any;
}

/// Puts 0 in the place of every NaN and infinity of a tile in shared memory, and counts in `found` if there were any. For tiles of
/// values of which not every row sees every key: the weight of a masked key is 0, but 0 times such a value would be NaN.
/// What is taken out here is added by add_non_finite(). All threads of the block call it between barriers.
template <class Block, class Tile>
GIWA_HOST_DEVICE void take_non_finite(const Block& block, Tile& tile, int& found) {
  using value = typename Tile::value_type;
  constexpr int run = Tile::placement::run, runs = Tile::columns / run;
  for (int i = block.rank(); i < Tile::rows * runs; i += block.size()) {
    value* const at = &tile(i / runs, i % runs * run);
    auto part = element_run<value, run>::read(at);
    bool any = false;
    GIWA_UNROLL
    for (int j = 0; j < run; ++j) any = any || is_non_finite(part.get(j));
    if (!any) continue;
    block.atomic_add(found, 1);
    for (int j = 0; j < run; ++j)
      if (is_non_finite(part.get(j))) at[j] = convert<value>{}(0.f);
  }
}

/// Adds the NaNs and infinities of values that take_non_finite() took out to the output where it lies in memory: to columns
/// [first_column, first_column + columns) of rows [first_row, first_row + rows), where those see their keys. taken(n) tells of
/// which tiles of the list. For few threads and little code: few inputs have such values. `block` has written those rows.
template <class Block, class T, class O, class Mask, class Score, class Taken>
GIWA_HOST_DEVICE void add_non_finite(const Block& block, const score_steps<Mask, Score>& steps,
                                     const attention_head<T, O>& head, const key_tiles<Mask>& list, int first_row,
                                     int rows, int first_column, int columns, const Taken& taken) {
  const typename score_steps<Mask, Score>::bounds bounds(head);
  const int width = static_cast<int>(head.v.extent(1));
  const int end = columns < width - first_column ? first_column + columns : width;
  const int last_row = rows < head.queries() - first_row ? first_row + rows : head.queries();
  for (int n = list.next(0); n < list.count(); n = list.next(n + 1)) {
    if (!taken(n)) continue;
    for (int key = n * list.columns(); key < (n + 1) * list.columns() && key < head.keys(); ++key)
      for (int column = first_column + block.rank(); column < end; column += block.size()) {
        const T v = head.v(key, column);
        if (!is_non_finite(v)) continue;
        for (int row = first_row; row < last_row; ++row)
          if (steps.keeps(bounds, row, key))
            head.o(row, column) = convert<O>{}(convert<float>{}(head.o(row, column)) + convert<float>{}(v));
      }
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
