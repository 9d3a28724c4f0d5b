// SPDX-License-Identifier: MIT
// How a block_map is written from a source, by warps or by threads of the CPU: first the bits of rows, then the numbers of bits
// before each word, and the columns.
#ifndef GIWA_ATTENTION_BLOCKS_ROWS_HPP
#define GIWA_ATTENTION_BLOCKS_ROWS_HPP

#include <giwa/attention/blocks/score_sources.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The arguments of both steps.
template <class Source>
struct block_map_params {
  block_map map;
  Source source;
};

/// The first step: the bits of a word of a row, or of all its words.
struct write_block_bits {
  template <class Source>
  GIWA_HOST_DEVICE static int64 tasks(const block_map_params<Source>& p) {
    return matrices(p.map) * p.map.rows() * words_at_once(p);
  }
  template <class Team, class Source>
  GIWA_HOST_DEVICE static void run(const Team& team, const block_map_params<Source>& p, int64 task) {
    using source = block_source<Source>;
    const block_map& map = p.map;
    const int64 tasks_of_row = words_at_once(p), of_row = task / tasks_of_row, matrix = of_row / map.rows();
    block_place at{static_cast<int>(matrix / map.heads), static_cast<int>(matrix % map.heads),
                   static_cast<int>(of_row % map.rows()), static_cast<int>(task % tasks_of_row)};
    block_word* const words = map.row(at.batch, at.head, at.row);
    auto state = source::begin_row(team, map, p.source, at);
    for (const int end = source::whole_rows ? map.row_words() : at.word + 1; at.word < end; ++at.word) {
      const block_bits bits = source::word(team, map, p.source, at, state);
      if (team.lane() == 0) words[at.word].visible = bits.visible, words[at.word].full = bits.full;
    }
  }
  GIWA_HOST_DEVICE static int64 matrices(const block_map& map) { return int64{map.batch} * map.heads; }

 private:
  template <class Source>
  GIWA_HOST_DEVICE static int64 words_at_once(const block_map_params<Source>& p) {
    return block_source<Source>::whole_rows ? 1 : p.map.row_words();
  }
};

/// The second step: the numbers of bits before the words of a row, or a column, which is read from the bits of rows.
struct write_block_counts {
  template <class Source>
  GIWA_HOST_DEVICE static int64 tasks(const block_map_params<Source>& p) {
    return write_block_bits::matrices(p.map) * (p.map.rows() + int64{p.map.by_keys ? p.map.columns() : 0});
  }
  template <class Team, class Source>
  GIWA_HOST_DEVICE static void run(const Team& team, const block_map_params<Source>& p, int64 task) {
    const block_map& map = p.map;
    const int64 of_rows = write_block_bits::matrices(map) * map.rows();
    if (task < of_rows) {
      const int64 matrix = task / map.rows();
      count_row(team, map,
                map.row(static_cast<int>(matrix / map.heads), static_cast<int>(matrix % map.heads),
                        static_cast<int>(task % map.rows())));
    } else {
      const int64 matrix = (task - of_rows) / map.columns();
      write_column(team, map, static_cast<int>(matrix / map.heads), static_cast<int>(matrix % map.heads),
                   static_cast<int>((task - of_rows) % map.columns()));
    }
  }

 private:
  template <class Team>
  GIWA_HOST_DEVICE static void count_row(const Team& team, const block_map& map, block_word* words) {
    int visible = 0, full = 0;  // of the words before
    for (int first = 0; first < map.row_words(); first += Team::lanes) {
      const int i = first + team.lane();
      const bool is_word = i < map.row_words();
      const int of_visible = is_word ? popcount(words[i].visible) : 0, of_full = is_word ? popcount(words[i].full) : 0;
      const int visible_up_to = visible + team.scan(of_visible), full_up_to = full + team.scan(of_full);
      if (is_word) {
        words[i].visible_before = static_cast<uint32>(visible_up_to - of_visible);
        words[i].full_before = static_cast<uint32>(full_up_to - of_full);
      }
      visible = team.last(visible_up_to), full = team.last(full_up_to);
    }
  }
  template <class Team>
  GIWA_HOST_DEVICE static void write_column(const Team& team, const block_map& map, int batch, int head, int column) {
    block_word* const words = map.column(batch, head, column);
    uint32 visible_before = 0, full_before = 0;
    for (int i = 0; i < map.column_words(); ++i) {
      uint32 visible = 0, full = 0;
      for (int bit = team.lane(), row; bit < 32 && (row = 32 * i + bit) < map.rows(); bit += Team::lanes) {
        const block_word& of_row = map.row(batch, head, row)[column / 32];
        visible |= (of_row.visible >> column % 32 & 1) << bit, full |= (of_row.full >> column % 32 & 1) << bit;
      }
      visible = team.any_bits(visible), full = team.any_bits(full);
      if (team.lane() == 0) words[i] = {visible, visible_before, full, full_before};
      visible_before += static_cast<uint32>(popcount(visible)), full_before += static_cast<uint32>(popcount(full));
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
