// SPDX-License-Identifier: MIT
// The steps between S = Q K^T and the softmax: the same on every path.
#ifndef GIWA_ATTENTION_SCORE_SCORE_STEPS_CUH
#define GIWA_ATTENTION_SCORE_SCORE_STEPS_CUH

#include <giwa/attention/problem/kept_tile.hpp>
#include <giwa/attention/work/visible_tiles.hpp>
#include <giwa/softmax/online.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Maps the (row, column) of a tile of scores to its query and key. In a forward pass the rows are queries; a backward
/// pass may have keys as rows. Packed rows of grouped heads (work/packed_rows.hpp) are another map with these members.
struct rows_are_queries {
  static constexpr bool by_range = true;  // queries are in order: a mask with one range of keys is asked for its ends
  int first_query, first_key;
  GIWA_HOST_DEVICE int query(int row, int) const { return first_query + row; }
  GIWA_HOST_DEVICE int key(int, int column) const { return first_key + column; }
};
struct rows_are_keys {
  int first_query, first_key;
  GIWA_HOST_DEVICE int query(int, int column) const { return first_query + column; }
  GIWA_HOST_DEVICE int key(int row, int) const { return first_key + row; }
};

/// Applies scale, score modifier and mask. Without a modifier, and with a positive scale, the scale is folded into the
/// softmax's FMA at no cost.
template <class Mask, class Score>
struct score_steps {
  const Mask& mask;
  const Score& score;
  float scale;
  [[no_unique_address]] decltype(dropout_key(stdlib::declval<const Score&>())) random_key = dropout_key(score);

  static constexpr bool modified = !is_plain_score<Score>;
  GIWA_HOST_DEVICE bool scale_first() const { return modified || !(scale > 0); }
  /// The factor by which the softmax multiplies scores, times log2(e).
  GIWA_HOST_DEVICE float scale_log2() const { return scale_first() ? log2_e<float> : scale * log2_e<float>; }

  /// The inputs of masks and modifiers that a head determines, copied out of the head, which is in shared memory.
  struct bounds {
    int batch, head, queries, keys, offset;
    template <class Head>  // attention_head, or another type with these members
    GIWA_HOST_DEVICE explicit bounds(const Head& h)
        : batch(h.batch), head(h.head), queries(h.queries()), keys(h.keys()), offset(h.offset) {}
    GIWA_HOST_DEVICE int end_row() const { return queries; }
    GIWA_HOST_DEVICE bool contain(int query, int key) const { return query < queries && key < keys; }
    GIWA_HOST_DEVICE attention_coord place(int query, int key) const {
      return {batch, head, query, key, query + offset};
    }
    /// The same, of the last query or key instead of one past the end: a modifier is called for each pair of a tile, because a
    /// branch for each score takes longer.
    GIWA_HOST_DEVICE attention_coord place_within(int query, int key) const {
      return place(query < queries ? query : queries - 1, key < keys ? key : keys - 1);
    }
  };
  /// Whether a query sees a key. The mask is called only for keys and queries of the tensor.
  template <class Bounds>
  GIWA_HOST_DEVICE bool keeps(const Bounds& b, int query, int key) const {
    return b.contain(query, key) && mask(b.place(query, key));
  }

  /// Applies the steps to a tile of scores, whose rows and columns `at` maps to queries and keys. `BranchesOnScale`: a
  /// branch leaves out the multiplication of a tile whose scale is part of the softmax; without it the factor is 1.
  template <bool BranchesOnScale = false, class Map, class Bounds, class RowMap>
  GIWA_HOST_DEVICE void apply(int thread, register_tile<float, Map>& scores, const Bounds& b, tile_keep keep,
                              const RowMap& at) const {
    if constexpr (modified) {
      // For rows and keys past the end the modifier gets the last ones: a branch for each score would take longer.
      const int last_row = b.end_row() - 1, last_key = b.keys - 1;
      scores.for_each(thread, [&](float& x, int row, int column) {
        const int query = at.query(row, column), key = at.key(row, column);
        x = score(device_product(x, scale),
                  b.place(query < last_row ? query : last_row, key < last_key ? key : last_key));
      });
      if (keep == tile_keep::all) return;
    } else {
      if (keep == tile_keep::all && !scale_first()) return;
      const float first = scale_first() ? scale : 1.f;
      if (!BranchesOnScale || scale_first()) scores.transform([&](float x) { return x * first; });
      if (keep == tile_keep::all) return;
    }
    if constexpr (one_range_mask<Mask> && requires { requires RowMap::by_range; })
      keep_range(thread, scores, b, at);
    else if constexpr (mask_traits<Mask>::has_key_bits && requires { requires RowMap::by_range; })
      keep_bits(thread, scores, b, at);
    else
      scores.for_each(thread, [&](float& x, int row, int column) {
        if (!keeps(b, at.query(row, column), at.key(row, column))) x = -infinity_of<float>;
      });
  }
  /// Applies the steps to a tile in which every score is in range and visible. Requires that the scale is positive or that
  /// there is a modifier. Has no branch, unless the modifier has one.
  template <class Map, class Bounds, class RowMap>
  GIWA_HOST_DEVICE void apply_to_whole(int thread, register_tile<float, Map>& scores, const Bounds& b,
                                       const RowMap& at) const {
    if constexpr (modified)
      scores.for_each(thread, [&](float& x, int row, int column) {
        x = score(device_product(x, scale), b.place(at.query(row, column), at.key(row, column)));
      });
  }
  /// Finds the weights of a tile of P that dropout keeps; finish_rows() scales them. The tile begins at multiples of 16.
  template <class Block, class Bounds, class RowMap, class Map>
  GIWA_HOST_DEVICE void find_kept(const Block& block, int thread, const Bounds& b, const RowMap& at,
                                  kept_tile<Map, false>& to) const {
    to.find(block, dropout_bits(score, random_key, b.batch, b.head), thread, at.first_query, at.first_key);
  }

 private:
  // Masks by 32 keys of a row at once.
  template <class Map, class Bounds, class RowMap>
  GIWA_HOST_DEVICE void keep_bits(int thread, register_tile<float, Map>& scores, const Bounds& b,
                                  const RowMap& at) const {
    const int origin = at.first_key + Map::column(thread, 0);
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) {
      const int row = at.query(Map::row(thread, r), 0);
      GIWA_UNROLL
      for (int first = 0; first < Map::shape::columns; first += 32) {
        const int key = origin + first, left = b.keys - key;
        uint32 bits = b.contain(row, key) ? mask.key_bits(b.place(row, key)) : 0;
        if (left < 32) bits &= (uint32{1} << (left > 0 ? left : 0)) - 1;
        GIWA_UNROLL
        for (int i = 0; i < Map::registers; ++i) {
          const int bit = Map::column(0, i) - first;
          if (Map::slot(i) == r && bit >= 0 && bit < 32 && (bits >> bit & 1) == 0)
            scores.value[i] = -infinity_of<float>;
        }
      }
    }
  }
  // Masks by the first and the last key of each row. A score's column is a constant plus the thread's first column, so
  // each comparison is with a constant.
  template <class Map, class Bounds, class RowMap>
  GIWA_HOST_DEVICE void keep_range(int thread, register_tile<float, Map>& scores, const Bounds& b,
                                   const RowMap& at) const {
    const int first_key = at.first_key, origin = first_key + Map::column(thread, 0), rows = b.end_row();
    int first[Map::rows], end[Map::rows];
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) {
      const int query = at.query(Map::row(thread, r), 0);
      const attention_coord place = b.place(query < rows ? query : rows - 1, 0);
      first[r] = 0;
      int last = b.keys - 1;
      if constexpr (has_first_key<Mask>) {
        const int bound = mask.first_key(place);
        first[r] = (bound > first_key ? bound : first_key) - origin;  // no score of the tile has a smaller key
      }
      if constexpr (has_last_key<Mask>) {
        const int bound = mask.last_key(place);
        last = bound < last ? bound : last;
      }
      end[r] = query < rows && last >= first_key ? last - origin + 1 : 0;
    }
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; ++i) {
      const int column = Map::column(0, i), r = Map::slot(i);
      if (column >= end[r] || (has_first_key<Mask> && column < first[r])) scores.value[i] = -infinity_of<float>;
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
