// SPDX-License-Identifier: MIT
// The order of work tiles, and the tiles of keys that a tile of queries needs.
#ifndef GIWA_ATTENTION_SCHEDULE_WORK_TILES_HPP
#define GIWA_ATTENTION_SCHEDULE_WORK_TILES_HPP

#include <giwa/attention/problem/params.hpp>
#include <giwa/numeric/fast_division.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The work tiles of a call in the order in which blocks take them: each a tile of queries of one head and a slice of the output's
/// columns. Heads come in sections whose keys and values fit into the L2 cache together; in a section the last tiles of all heads
/// come first, because under a causal mask those have the most keys. A launch takes the work tiles from `first` on.
struct attention_schedule {
  int64 first = 0, work_tiles = 0;  // work_tiles: of the whole call
  // Tiles of queries of a sequence. Where only the device knows the lengths this is a guess: a block takes every query_tiles-th.
  int64 query_tiles = 1;
  int64 rows = 0;  // heads of all sequences
  fast_divisor slices, section, tiles_of_section, heads;

  struct work_tile {
    int batch, head, slice;
    int64 tile;
  };
  GIWA_HOST_DEVICE work_tile at(int64 i) const {
    const int64 tile = i / slices, first_row = tile / tiles_of_section * section.divisor();
    const int64 left = rows - first_row, rest = tile - first_row * query_tiles;
    const bool whole = left >= section.divisor();
    const int64 turn = whole ? rest / section : rest / left, width = whole ? section.divisor() : left;
    const int64 row = first_row + rest - turn * width, batch = row / heads;
    return {static_cast<int>(batch), static_cast<int>(row - batch * heads.divisor()),
            static_cast<int>(i - tile * slices.divisor()), query_tiles - 1 - turn};
  }

  /// For tiles of `block_m` queries and `slices` slices of the output; a key and its value have `bytes` bytes, and a sequence whose
  /// length only the device knows has about `longest` rows. There is at least one sequence and one head.
  GIWA_HOST_DEVICE static attention_schedule of(const attention_problem& p, int64 longest, int block_m, int slices_,
                                                int bytes) {
    constexpr int64 cached = 24 << 20;
    attention_schedule s;
    const int64 queries = p.seq_q < 0 ? longest : p.seq_q, keys = p.seq_k < 0 ? longest : p.seq_k;
    s.query_tiles = queries > block_m ? ceil_div(queries, int64{block_m}) : 1;
    // Out of the range of 64 bits means out of the range of any memory too: a tensor of so many heads has no address.
    s.rows = wrapping_product(p.batch, p.heads);
    s.work_tiles = wrapping_product(s.rows, wrapping_product(s.query_tiles, slices_));
    const int64 heads_at_once = cached / (bytes * (keys > 0 ? keys : 1)) * (p.heads / p.kv_heads);
    s.slices = fast_divisor(slices_);
    s.section = fast_divisor(heads_at_once < 1 ? 1 : heads_at_once > s.rows ? s.rows : heads_at_once);
    s.tiles_of_section = fast_divisor(s.query_tiles * s.section.divisor());
    s.heads = fast_divisor(p.heads);
    return s;
  }
};

/// The tiles of `columns` keys that some of the queries [first_query, first_query + rows) see, one after the other.
template <class Mask>
class key_tiles {
 public:
  template <class T, class O>
  GIWA_HOST_DEVICE key_tiles(const Mask& mask, const attention_head<T, O>& h, int first_query, int rows, int columns)
      : mask_(mask),
        queries_{
            h.batch, h.head, first_query, (rows < h.queries() - first_query ? first_query + rows : h.queries()) - 1,
            0,       0,      h.offset},
        keys_(h.keys()),
        columns_(columns),
        count_(ceil_div(h.keys(), columns)) {}

  GIWA_HOST_DEVICE int count() const { return count_; }
  GIWA_HOST_DEVICE int columns() const { return columns_; }

  /// What the mask and the end of the keys leave of a tile.
  GIWA_HOST_DEVICE tile_keep keep(int n) const { return with_end(kept_by_mask(n), n); }
  /// What they leave for some of the queries; none where there are no such queries.
  GIWA_HOST_DEVICE tile_keep keep(int n, int first_query, int rows) const {
    const score_tile t = range(n, 1);
    return first_query > t.last_query ? tile_keep::none
                                      : with_end(classify(mask_, of_queries(t, first_query, rows)), n);
  }
  /// Whether some of the queries may need a tile from n on. Masks that do not answer for any range are not asked.
  GIWA_HOST_DEVICE bool needs_from(int n, int first_query, int rows) const {
    if (n >= count_) return false;
    if constexpr (!answers_any_range<Mask>) {
      return true;
    } else {
      const score_tile t = range(n, count_ - n);
      return first_query <= t.last_query && classify(mask_, of_queries(t, first_query, rows)) != tile_keep::none;
    }
  }
  /// What the mask alone leaves.
  GIWA_HOST_DEVICE tile_keep kept_by_mask(int n) const { return classify(mask_, range(n, 1)); }

  /// The first tile from n on that is needed, or count(). A mask that answers for any range is asked about runs of tiles, twice
  /// as many while none is: a window in a million keys is found in some forty questions.
  GIWA_HOST_DEVICE int next(int n) const {
    for (int run = 1; n < count_;) {
      if (run > count_ - n) run = count_ - n;
      if (classify(mask_, range(n, run)) == tile_keep::none) {
        n += run;
        if constexpr (answers_any_range<Mask>) run *= 2;
      } else if (run == 1) {
        return n;
      } else {
        run = run / 2;
      }
    }
    return count_;
  }

 private:
  GIWA_HOST_DEVICE score_tile range(int n, int run) const {
    score_tile t = queries_;
    t.first_key = n * columns_;
    t.last_key = (run < count_ - n ? t.first_key + run * columns_ : keys_) - 1;
    return t;
  }
  GIWA_HOST_DEVICE static score_tile of_queries(score_tile t, int first_query, int rows) {
    t.first_query = first_query;
    if (rows <= t.last_query - first_query) t.last_query = first_query + rows - 1;
    return t;
  }
  GIWA_HOST_DEVICE tile_keep with_end(tile_keep k, int n) const {
    return k == tile_keep::all && (n + 1) * columns_ > keys_ ? tile_keep::some : k;
  }

  const Mask& mask_;
  score_tile queries_;
  int keys_, columns_, count_;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
