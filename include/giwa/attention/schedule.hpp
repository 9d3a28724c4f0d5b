// SPDX-License-Identifier: MIT
// Which block makes which part of the output, and which tiles of keys a tile of queries needs.
#ifndef GIWA_ATTENTION_SCHEDULE_HPP
#define GIWA_ATTENTION_SCHEDULE_HPP

#include <giwa/attention/problem.hpp>
#include <giwa/numeric/fast_division.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The blocks of a call in a row: for each head of each sequence its tiles of queries, the last first, as under a causal mask
/// that has the most keys; for each tile the slices of the output's columns. A launch takes those from `first` on.
struct attention_grid {
  int64 first = 0, blocks = 0;  // blocks: of the whole call
  int64 tiles = 1;              // of queries; of packed sequences about as many, and a block takes every tiles-th
  fast_divisor slices, tiles_of_head, heads;

  struct place {
    int batch, head, slice;
    int64 tile;
  };
  GIWA_HOST_DEVICE place at(int64 block_rank) const {
    const int64 item = first + block_rank, tile = item / slices, row = tile / tiles_of_head, batch = row / heads;
    return {static_cast<int>(batch), static_cast<int>(row - batch * heads.divisor()),
            static_cast<int>(item - tile * slices.divisor()), tiles - 1 - (tile - row * tiles)};
  }

  /// Of tiles of `rows` queries, and outputs in `slices_` slices. There is at least one sequence and one head.
  GIWA_HOST_DEVICE static attention_grid of(const attention_problem& p, int64 longest, int rows, int slices_) {
    attention_grid g;
    const int64 queries = p.seq_q < 0 ? longest : p.seq_q;
    g.tiles = queries > rows ? ceil_div(queries, int64{rows}) : 1;
    g.slices = fast_divisor(slices_);
    g.tiles_of_head = fast_divisor(g.tiles);
    g.heads = fast_divisor(p.heads);
    // Out of the range of 64 bits means out of the range of any memory too: a tensor of so many heads has no address.
    g.blocks = wrapping_product(wrapping_product(p.batch, p.heads), wrapping_product(g.tiles, slices_));
    return g;
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

  /// What the mask and the end of the keys leave of a tile.
  GIWA_HOST_DEVICE tile_keep keep(int n) const {
    const tile_keep k = of_range(n, 1);
    return k == tile_keep::all && (n + 1) * columns_ > keys_ ? tile_keep::some : k;
  }

  /// The first tile from n on that is needed, or count(). A mask that answers for any range is asked about runs of tiles, twice
  /// as many while none is: a window in a million keys is found in some forty questions.
  GIWA_HOST_DEVICE int next(int n) const {
    for (int run = 1; n < count_;) {
      if (run > count_ - n) run = count_ - n;
      if (of_range(n, run) == tile_keep::none) {
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
  GIWA_HOST_DEVICE tile_keep of_range(int n, int run) const {
    score_tile t = queries_;
    t.first_key = n * columns_;
    t.last_key = (run < count_ - n ? t.first_key + run * columns_ : keys_) - 1;
    return classify(mask_, t);
  }

  const Mask& mask_;
  score_tile queries_;
  int keys_, columns_, count_;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
