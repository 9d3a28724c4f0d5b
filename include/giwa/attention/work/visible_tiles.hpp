// SPDX-License-Identifier: MIT
// The tiles of keys that a range of queries sees, or the tiles of queries that see a range of keys.
#ifndef GIWA_ATTENTION_WORK_VISIBLE_TILES_HPP
#define GIWA_ATTENTION_WORK_VISIBLE_TILES_HPP

#include <giwa/attention/problem/params.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Along which axis of the score matrix tiles are listed.
enum class tile_axis : int { keys, queries };

/// Lists the tiles along one axis of which something is visible under the mask, in order, for a fixed range along the other: K
/// tiles for a tile of queries, as the forward pass needs them, or tiles of queries for a K tile, as a backward pass
/// does. A tile has `size` rows of its axis; the last one may have fewer.
template <class Mask, tile_axis Axis>
class visible_tiles {
 public:
  static constexpr bool any_range = mask_traits<Mask>::any_range;

  /// For the rows [first, first + count) of the other axis, as far as the head has them. Head: attention_head, or
  /// another type with these members.
  template <class Head>
  GIWA_HOST_DEVICE visible_tiles(const Mask& mask, const Head& h, int first, int count, int size)
      : mask_(mask),
        fixed_(of_fixed(h, first, last_of(first, count, lists_keys ? h.queries() : h.keys()))),
        end_(lists_keys ? h.keys() : h.queries()),
        size_(size),
        count_(ceil_div(end_, size)) {}

  GIWA_HOST_DEVICE int count() const { return count_; }
  GIWA_HOST_DEVICE int columns() const { return size_; }
  /// The rows of tile n of its axis before the end.
  GIWA_HOST_DEVICE int rows_of(int n) const { return end_ - n * size_ < size_ ? end_ - n * size_ : size_; }

  /// Returns what of a tile is visible: under the mask, and before the end of the axis.
  GIWA_HOST_DEVICE tile_keep keep(int n) const { return with_end(visible_by_mask(n), n); }
  /// Returns what is visible under the mask alone of the tiles [n, n + run), or as many as there are, for the rows [first, first +
  /// count) of the fixed range; none if there are no such tiles or rows. Of more than one tile it may be asked if the mask
  /// classifies any range.
  GIWA_HOST_DEVICE tile_keep visible_by_mask(int n, int run, int first, int count) const {
    if (n >= count_) return tile_keep::none;
    const score_tile t = range(n, run);
    return first > last_fixed(t) ? tile_keep::none : classify(mask_, part_of(t, first, count));
  }
  /// Returns what of a tile is visible for some of the rows.
  GIWA_HOST_DEVICE tile_keep keep(int n, int first, int count) const {
    return with_end(visible_by_mask(n, 1, first, count), n);
  }
  /// Returns what the end of the axis leaves of what is visible under the mask.
  GIWA_HOST_DEVICE tile_keep with_end(tile_keep k, int n) const {
    return k == tile_keep::all && (n + 1) * size_ > end_ ? tile_keep::some : k;
  }
  /// The fixed range.
  ///@{
  GIWA_HOST_DEVICE int first_row() const { return lists_keys ? fixed_.first_query : fixed_.first_key; }
  GIWA_HOST_DEVICE int last_row() const { return last_fixed(fixed_); }
  ///@}
  /// Returns what of a tile is visible under the mask alone.
  GIWA_HOST_DEVICE tile_keep visible_by_mask(int n) const { return classify(mask_, range(n, 1)); }

  /// Whether what visible_from() finds visible is.
  static constexpr bool is_exact = requires { requires Mask::visible_is_exact; };
  /// Returns what of the tiles [n, n + 32), or as many as there are, is visible under the mask alone; n is less than count().
  GIWA_HOST_DEVICE tile_bits visible_from(int n) const {
    if (first_row() > last_row()) return {0, 0};
    return visible_tiles_of<lists_keys>(mask_, range(n, 32), size_);
  }

  /// Returns the first needed tile from n on, or count(). If the mask classifies any range, runs of tiles are
  /// classified at once, and the run doubles while it is fully masked: a window in a million keys is found by about
  /// forty calls of classify.
  GIWA_HOST_DEVICE int next(int n) const {
    for (int run = 1; n < count_;) {
      if (run > count_ - n) run = count_ - n;
      if (classify(mask_, range(n, run)) == tile_keep::none) {
        n += run;
        if constexpr (any_range) run *= 2;
      } else if (run == 1) {
        return n;
      } else {
        run = run / 2;
      }
    }
    return count_;
  }

  /// Returns the last needed tile before n, or -1; in the same way.
  GIWA_HOST_DEVICE int previous(int n) const {
    for (int run = 1; n > 0;) {
      if (run > n) run = n;
      if (classify(mask_, range(n - run, run)) == tile_keep::none) {
        n -= run;
        if constexpr (any_range) run *= 2;
      } else if (run == 1) {
        return n - 1;
      } else {
        run = run / 2;
      }
    }
    return -1;
  }

  /// Returns the first tile of [first, end) from which on the fixed range sees all of each tile under the mask, or `end`. Asks about
  /// runs of tiles.
  GIWA_HOST_DEVICE int all_from(int first, int end) const {
    int from = end;
    for (int low = first, middle = first; low < from; middle = (low + from) / 2) {
      if (classify(mask_, range(middle, end - middle)) == tile_keep::all)
        from = middle;
      else
        low = middle + 1;
    }
    return from;
  }

 private:
  static constexpr bool lists_keys = Axis == tile_axis::keys;

  GIWA_HOST_DEVICE static int last_of(int first, int count, int length) {
    return (count < length - first ? first + count : length) - 1;
  }
  template <class Head>
  GIWA_HOST_DEVICE static score_tile of_fixed(const Head& h, int first, int last) {
    if constexpr (lists_keys)
      return {h.batch, h.head, first, last, 0, 0, h.offset};
    else
      return {h.batch, h.head, 0, 0, first, last, h.offset};
  }
  GIWA_HOST_DEVICE static int last_fixed(const score_tile& t) { return lists_keys ? t.last_query : t.last_key; }
  GIWA_HOST_DEVICE score_tile range(int n, int run) const {
    score_tile t = fixed_;
    int& first = lists_keys ? t.first_key : t.first_query;
    int& last = lists_keys ? t.last_key : t.last_query;
    first = n * size_;
    last = (run < count_ - n ? first + run * size_ : end_) - 1;
    return t;
  }
  GIWA_HOST_DEVICE static score_tile part_of(score_tile t, int first, int count) {
    int& first_row = lists_keys ? t.first_query : t.first_key;
    int& last_row = lists_keys ? t.last_query : t.last_key;
    first_row = first;
    if (count <= last_row - first) last_row = first + count - 1;
    return t;
  }

  const Mask& mask_;
  score_tile fixed_;
  int end_, size_, count_;
};

/// The K tiles that a tile of queries needs.
template <class Mask>
using key_tiles = visible_tiles<Mask, tile_axis::keys>;

}  // namespace giwa::inline GIWA_ABI::detail

#endif
