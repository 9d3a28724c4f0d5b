// SPDX-License-Identifier: MIT
// How a block_map is written from a source, by warps or by threads of the CPU: bits of rows and columns, and their numbers.
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
    if constexpr (requires { source::words_of_lane; }) {
      constexpr int count = source::words_of_lane;
      for (; at.word < map.row_words(); at.word += count * Team::lanes) {
        block_bits bits[unsigned{count}]{};
        source::words(team, map, p.source, at, bits);
        for (int i = 0, w; i < count && (w = at.word + team.lane() + i * Team::lanes) < map.row_words(); ++i)
          words[w].visible = bits[i].visible, words[w].full = bits[i].full;
      }
    } else {
      auto state = source::begin_row(team, map, p.source, at);
      for (const int end = source::whole_rows ? map.row_words() : at.word + 1; at.word < end; ++at.word) {
        const block_bits bits = source::word(team, map, p.source, at, state);
        if (team.lane() == 0) words[at.word].visible = bits.visible, words[at.word].full = bits.full;
      }
    }
  }
  GIWA_HOST_DEVICE static int64 matrices(const block_map& map) { return int64{map.batch} * map.heads; }

 private:
  template <class Source>
  GIWA_HOST_DEVICE static int64 words_at_once(const block_map_params<Source>& p) {
    return block_source<Source>::whole_rows ? 1 : p.map.row_words();
  }
};

/// Writes the numbers of bits before each of the words of a row or column.
template <class Team>
GIWA_HOST_DEVICE void count_bits_before(const Team& team, block_word* words, int count) {
  int visible = 0, full = 0;  // of the words before
  for (int first = 0; first < count; first += Team::lanes) {
    const int i = first + team.lane();
    const bool is_word = i < count;
    const int of_visible = is_word ? popcount(words[i].visible) : 0, of_full = is_word ? popcount(words[i].full) : 0;
    const int visible_up_to = visible + team.scan(of_visible), full_up_to = full + team.scan(of_full);
    if (is_word) {
      words[i].visible_before = static_cast<uint32>(visible_up_to - of_visible);
      words[i].full_before = static_cast<uint32>(full_up_to - of_full);
    }
    visible = team.last(visible_up_to), full = team.last(full_up_to);
  }
}

/// The second step: the numbers of bits of a row, or the bits of 32 columns in 32 rows.
struct write_block_columns {
  template <class Source>
  GIWA_HOST_DEVICE static int64 tasks(const block_map_params<Source>& p) {
    return write_block_bits::matrices(p.map) * (p.map.rows() + (p.map.by_keys ? squares(p.map) : 0));
  }
  template <class Team, class Source>
  GIWA_HOST_DEVICE static void run(const Team& team, const block_map_params<Source>& p, int64 task) {
    const block_map& map = p.map;
    const int64 of_rows = write_block_bits::matrices(map) * map.rows();
    if (task < of_rows) {
      const int64 matrix = task / map.rows();
      count_bits_before(team,
                        map.row(static_cast<int>(matrix / map.heads), static_cast<int>(matrix % map.heads),
                                static_cast<int>(task % map.rows())),
                        map.row_words());
    } else {
      const int64 matrix = (task - of_rows) / squares(map), square = (task - of_rows) % squares(map);
      transpose(team, map, static_cast<int>(matrix / map.heads), static_cast<int>(matrix % map.heads),
                static_cast<int>(square / map.column_words()), static_cast<int>(square % map.column_words()));
    }
  }

 private:
  /// Words of rows, and of columns, that are visited together.
  GIWA_HOST_DEVICE static int64 squares(const block_map& map) { return int64{map.row_words()} * map.column_words(); }
  /// Word `of_row` of 32 rows becomes word `of_column` of 32 columns.
  template <class Team>
  GIWA_HOST_DEVICE static void transpose(const Team& team, const block_map& map, int batch, int head, int of_row,
                                         int of_column) {
    const int first_row = 32 * of_column, first_column = 32 * of_row;
    const auto rows = [&](int i) {
      if (first_row + i >= map.rows()) return block_bits{0, 0};
      const block_word& w = map.row(batch, head, first_row + i)[of_row];
      return block_bits{w.visible, w.full};
    };
    team.transpose(rows, [&](int i, const block_bits& bits) {
      if (first_column + i >= map.columns()) return;
      block_word& w = map.column(batch, head, first_column + i)[of_column];
      w.visible = bits.visible, w.full = bits.full;
    });
  }
};

/// The third step, of a map that has its blocks by columns too: the numbers of bits of a column.
struct write_column_counts {
  template <class Source>
  GIWA_HOST_DEVICE static int64 tasks(const block_map_params<Source>& p) {
    return p.map.by_keys ? write_block_bits::matrices(p.map) * p.map.columns() : 0;
  }
  template <class Team, class Source>
  GIWA_HOST_DEVICE static void run(const Team& team, const block_map_params<Source>& p, int64 task) {
    const block_map& map = p.map;
    const int64 matrix = task / map.columns();
    count_bits_before(team,
                      map.column(static_cast<int>(matrix / map.heads), static_cast<int>(matrix % map.heads),
                                 static_cast<int>(task % map.columns())),
                      map.column_words());
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
