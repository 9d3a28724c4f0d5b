// SPDX-License-Identifier: MIT
// The order of work tiles, and the tiles of keys that a tile of queries needs.
#ifndef GIWA_ATTENTION_SCHEDULE_WORK_TILES_HPP
#define GIWA_ATTENTION_SCHEDULE_WORK_TILES_HPP

#include <giwa/attention/problem/params.hpp>
#include <giwa/numeric/fast_division.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The work tiles of a call in the order in which blocks process them. Each is a tile of queries of one head and a
/// slice of the output's columns. Heads are grouped in sections whose keys and values fit into the L2 cache together.
/// Within a section the last tiles of all heads come first, because under a causal mask they have the most keys. A
/// launch processes the work tiles from `first` on.
struct attention_schedule {
  int64 first = 0, work_tiles = 0;  // work_tiles: of the whole call
  // Tiles of queries per sequence. If only the device knows the lengths, this is an estimate: a block processes every
  // query_tiles-th tile.
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

  /// Returns the schedule for tiles of `block_m` queries and `slices` slices of the output. A key and its value have
  /// `bytes` bytes, and a sequence whose length only the device knows has about `longest` rows. There must be at least
  /// one sequence and one head.
  GIWA_HOST_DEVICE static attention_schedule of(const attention_problem& p, int64 longest, int block_m, int slices_,
                                                int bytes) {
    constexpr int64 cached = 24 << 20;
    attention_schedule s;
    const int64 queries = p.seq_q < 0 ? longest : p.seq_q, keys = p.seq_k < 0 ? longest : p.seq_k;
    s.query_tiles = queries > block_m ? ceil_div(queries, int64{block_m}) : 1;
    // A product that overflows 64 bits needs no check: a tensor of so many heads exceeds any memory.
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

/// Lists the tiles of `columns` keys that some of the queries [first_query, first_query + rows) see, in order.
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

  /// Returns what the mask and the end of the keys keep of a tile.
  GIWA_HOST_DEVICE tile_keep keep(int n) const { return with_end(kept_by_mask(n), n); }
  /// Returns what they keep for queries [first_query, first_query + rows); none if there are no such queries.
  GIWA_HOST_DEVICE tile_keep keep(int n, int first_query, int rows) const {
    const score_tile t = range(n, 1);
    return first_query > t.last_query ? tile_keep::none
                                      : with_end(classify(mask_, of_queries(t, first_query, rows)), n);
  }
  /// Whether some of those queries may need a tile from n on. True for masks that cannot classify any range.
  GIWA_HOST_DEVICE bool needs_from(int n, int first_query, int rows) const {
    if (n >= count_) return false;
    if constexpr (!answers_any_range<Mask>) {
      return true;
    } else {
      const score_tile t = range(n, count_ - n);
      return first_query <= t.last_query && classify(mask_, of_queries(t, first_query, rows)) != tile_keep::none;
    }
  }
  /// Returns what the mask alone keeps of a tile.
  GIWA_HOST_DEVICE tile_keep kept_by_mask(int n) const { return classify(mask_, range(n, 1)); }

  /// Returns the first needed tile from n on, or count(). If the mask classifies any range, runs of tiles are
  /// classified at once, and the run doubles while it is fully masked: a window in a million keys is found by about
  /// forty calls of classify.
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
