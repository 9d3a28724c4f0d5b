// SPDX-License-Identifier: MIT
// The order of work tiles, in which blocks take the tiles of queries of all heads.
#ifndef GIWA_ATTENTION_WORK_WORK_TILES_HPP
#define GIWA_ATTENTION_WORK_WORK_TILES_HPP

#include <giwa/attention/problem/params.hpp>
#include <giwa/numeric/fast_division.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The work tiles of a call in the order in which blocks process them. Each is a tile of queries of one head and a
/// slice of the output's columns. Heads are grouped in sections whose keys and values fit into the L2 cache together.
/// Within a section the last tiles of all heads come first, because under a causal mask they have the most keys. The last section
/// takes the heads that are left over as well: with few heads, blocks would end with long tiles. H200, 2026-11-24,
/// fp16, causal, 1024 to 8192 tokens, times a last section of what is left: 128 1.02 to 1.03, 256 1.06 to 1.08.
/// Sections of 36 MB: 0.95 to 1.00 up to 2048 tokens, 256 1.02 at 4096. A launch processes the work tiles from `first` on.
struct attention_schedule {
  int64 first = 0, work_tiles = 0;  // work_tiles: of the whole call
  // Tiles of queries per sequence. If only the device knows the lengths, this is an estimate: a block processes every
  // query_tiles-th tile.
  int64 query_tiles = 1;
  int64 rows = 0;          // heads of all sequences
  int64 last_section = 0;  // its number
  fast_divisor slices, section, tiles_of_section, heads;

  struct work_tile {
    int batch, head, slice;
    int64 tile;
  };
  GIWA_HOST_DEVICE work_tile at(int64 i) const {
    const int64 tile = i / slices, number = tile / tiles_of_section;
    const bool is_last = number >= last_section;
    const int64 first_row = (is_last ? last_section : number) * section.divisor();
    const int64 rest = tile - first_row * query_tiles, width = is_last ? rows - first_row : section.divisor();
    const int64 turn = is_last ? rest / width : rest / section;
    const int64 row = first_row + rest - turn * width, batch = row / heads;
    return {static_cast<int>(batch), static_cast<int>(row - batch * heads.divisor()),
            static_cast<int>(i - tile * slices.divisor()), query_tiles - 1 - turn};
  }

  /// Returns the schedule for tiles of `block_m` queries and `slices` slices of the output. A key and its value have
  /// `bytes` bytes, and a sequence whose length only the device knows has about `longest` rows. A section has at least
  /// `least_heads` heads, and more while their keys and values have up to `cached` bytes. There must be at least one
  /// sequence and one head.
  GIWA_HOST_DEVICE static attention_schedule of(const attention_problem& p, int64 longest, int block_m, int slices_,
                                                int bytes, int64 least_heads = 1, int64 cached = 24 << 20) {
    attention_schedule s;
    const int64 queries = p.seq_q < 0 ? longest : p.seq_q, keys = p.seq_k < 0 ? longest : p.seq_k;
    s.query_tiles = queries > block_m ? ceil_div(queries, int64{block_m}) : 1;
    // A product that overflows 64 bits needs no check: a tensor of so many heads exceeds any memory.
    s.rows = wrapping_product(p.batch, p.heads);
    s.work_tiles = wrapping_product(s.rows, wrapping_product(s.query_tiles, slices_));
    const int64 heads_at_once = cached / (bytes * (keys > 0 ? keys : 1)) * (p.heads / p.kv_heads);
    s.slices = fast_divisor(slices_);
    const int64 most = heads_at_once > least_heads ? heads_at_once : least_heads;
    const int64 sections = most < s.rows ? ceil_div(s.rows, most) : 1;
    // Equal sections, unless the last one would have more than twice the heads that fit.
    const int64 equal = s.rows / sections;
    const bool fits = s.rows - equal * (sections - 1) <= 2 * most;
    s.last_section = (fits ? sections : s.rows / most) - 1;
    s.section = fast_divisor(fits ? equal : most);
    s.tiles_of_section = fast_divisor(s.query_tiles * s.section.divisor());
    s.heads = fast_divisor(p.heads);
    return s;
  }
};

/// Whether a call is faster with 64 queries fewer in a work tile than block_m (sm90_policy::narrows), because whole work tiles
/// leave multiprocessors idle. `equal_work`: all work tiles have the same amount of work. H200, 2026-11-29, 192 x 80, causal, of the
/// other tile: 8 heads of 4096 tokens 0.77 with 192 queries, 0.89 with 128, 4 heads of 8192 0.78, 0.94; 8 of 8192 0.965, 0.94.
GIWA_HOST_DEVICE constexpr bool is_narrow_faster(int64 heads, int64 queries, int block_m, bool equal_work,
                                                 int64 multiprocessors) {
  const int64 wide = wrapping_product(heads, ceil_div(queries, int64{block_m}));
  const int64 narrow = wrapping_product(heads, ceil_div(queries, int64{block_m - 64}));
  if (!equal_work) return wide <= multiprocessors * 3 / 2;
  return ceil_div(wide, multiprocessors) * 5 > ceil_div(narrow, multiprocessors) * 4;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
