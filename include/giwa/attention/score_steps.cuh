// SPDX-License-Identifier: MIT
// What happens to a tile of scores before its softmax, and to a tile of the output after the last: the same on every path.
#ifndef GIWA_ATTENTION_SCORE_STEPS_CUH
#define GIWA_ATTENTION_SCORE_STEPS_CUH

#include <giwa/attention/problem.hpp>
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
  GIWA_HOST_DEVICE float scale_log2() const {
    constexpr float log2_e = 1.44269504088896340736f;
    return scale_first() ? log2_e : scale * log2_e;
  }

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
        if (inside) x = score(x * scale, b.place(query, key));
        if (!inside || (keep == tile_keep::some && !mask(b.place(query, key)))) x = -infinity_of<float>;
      });
    } else {
      if (scale_first()) scores.transform([&](float x) { return x * scale; });
      if (keep == tile_keep::some)
        scores.for_each(thread, [&](float& x, int row, int column) {
          if (!keeps(b, first_query + row, first_key + column)) x = -infinity_of<float>;
        });
    }
  }
};

/// What the rows' sums come to at the end: factor[row] for the output, and the log-sum-exps, which those threads write that
/// begin a row, if `write`. All lanes of the warp call it. A sink is one more score, whose value is 0.
template <class Map, class Block, class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE void finish_rows(const Block& block, int thread, online_softmax<Map>& softmax, float scale_log2,
                                  const attention_params<T, O, Mask, Score>& call, const attention_head<T, O>& h,
                                  int first_query, bool write, float (&factor)[Map::rows]) {
  constexpr float log2_e = 1.44269504088896340736f;
  softmax.finish(block);
  GIWA_UNROLL
  for (int r = 0; r < Map::rows; ++r) {
    float lse = softmax.lse(r, scale_log2);
    factor[r] = softmax.normalizer(r);
    if (call.sinks != nullptr) {
      const float sink = call.sinks[h.head * call.sink_stride];
      // With s the sum without the sink: s / (s + e^sink), by the difference of their logarithms.
      const float larger_one = lse > sink ? lse : sink, smaller = lse > sink ? sink : lse;
      const float ratio = smaller == -infinity_of<float> ? 0.f : exp2_of((smaller - larger_one) * log2_e);
      if (factor[r] != 0) factor[r] *= device_reciprocal(1.f + ratio) * (lse > sink ? 1.f : ratio);
      if (larger_one > -infinity_of<float>) lse = larger_one + natural_log{}(1.f + ratio);
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

/// Adds the NaNs and infinities of a tile (keys, columns of o) to the rows that see their keys. `thread` is the rank in Map's
/// group, keeps(row, key) tells whether a row of the map's tile sees a key.
template <class Map, class Tile, class Keeps>
GIWA_HOST_DEVICE void add_non_finite(int thread, register_tile<float, Map>& o, const Tile& values, const Keeps& keeps) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int key = 0; key < Tile::rows; ++key) {
    bool kept[Map::rows];
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) kept[r] = keeps(Map::row(thread, r), key);
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; ++i) {
      const auto v = values(key, Map::column(thread, i));
      if (is_non_finite(v) && kept[Map::slot(i)]) o.value[i] += convert<float>{}(v);
    }
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
