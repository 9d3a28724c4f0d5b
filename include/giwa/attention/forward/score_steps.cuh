// SPDX-License-Identifier: MIT
// What happens to a tile of scores before its softmax, and to a tile of the output after the last: the same on every path.
#ifndef GIWA_ATTENTION_FORWARD_SCORE_STEPS_CUH
#define GIWA_ATTENTION_FORWARD_SCORE_STEPS_CUH

#include <giwa/attention/schedule/work_tiles.hpp>
#include <giwa/softmax/online.cuh>

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

}  // namespace giwa::inline GIWA_ABI::detail

#endif
