// SPDX-License-Identifier: MIT
// What a block_map is made from block by block: lists, and scores of blocks; 32 blocks of a row at once.
#ifndef GIWA_ATTENTION_BLOCKS_SOURCES_HPP
#define GIWA_ATTENTION_BLOCKS_SOURCES_HPP

#include <giwa/attention/problem/block_map.hpp>
#include <giwa/attention/problem/views.hpp>

namespace giwa::inline GIWA_ABI {

/// Blocks of each row of blocks, in any order: how many, and which. FlexAttention's kv_num_blocks and kv_indices, and q2k lists.
struct block_list {
  tensor_view<const int, 3> counts{};   ///< (batch, heads, rows of blocks); empty: no blocks
  tensor_view<const int, 4> indices{};  ///< (batch, heads, rows of blocks, capacity) numbers of columns of blocks
};

/// A source of a block_map: lists of the full blocks and of those in which another mask is asked. A block in both is full.
struct block_lists {
  block_list full{};     ///< FlexAttention's full_kv_num_blocks and full_kv_indices
  block_list partial{};  ///< FlexAttention's kv_num_blocks and kv_indices
};

/// A source of a block_map: its full blocks as the rows of a sparse matrix (CSR of blocks, FlashInfer's and SciPy's BSR).
struct block_rows {
  tensor_view<const int, 3> offsets;  ///< (batch, heads, rows of blocks + 1): where each row's blocks are in `indices`
  tensor_view<const int, 1> indices;  ///< numbers of columns of blocks
};

/// A source of a block_map: the blocks whose score is at least a number are full. A NaN is not.
struct score_threshold {
  tensor_view<const float, 4> scores;  ///< (batch, heads, rows of blocks, columns of blocks)
  float least;                         ///< the smallest score that is visible
};

/// A source of a block_map: the blocks of each row with the greatest scores are full; of equal scores the first. A NaN is not.
struct score_top {
  tensor_view<const float, 4> scores;  ///< (batch, heads, rows of blocks, columns of blocks)
  int count;                           ///< blocks of a row, at least 0
};

namespace detail {

/// Where 32 blocks of a row are.
struct block_place {
  int batch, head, row, word;
};
/// Bits of 32 blocks.
struct block_bits {
  uint32 visible, full;
};

/// What the sources have in common. A team is the lanes of a warp, or one thread of the CPU: lane(), `lanes`, any_bits(x), which
/// returns the bits that a lane has, sum(x), from(x, lane), and add(pointer, n), by its first lane. `whole_rows`: a team has all words
/// of a row, in order. A source with `words_of_lane` and words() fills so many words in each lane, one every `lanes`.
struct block_source_base {
  static constexpr bool whole_rows = false;
  struct row_state {};
  template <class Team, class Source>
  GIWA_HOST_DEVICE static row_state begin_row(const Team&, const block_map&, const Source&, const block_place&) {
    return {};
  }

  /// Refuses a view whose extents are not those of the map.
  template <class T, int Rank>
  GIWA_HOST_DEVICE static status check_view(const tensor_view<T, Rank>& v, const int (&extents)[stdlib::size_t{Rank}],
                                            int checked, const block_map& map, const char* argument) {
    if (const status s = v.check(argument); !s.ok()) return s;
    constexpr const char* messages[] = {
        "the view must have the batch of the map", "the view must have the heads of the map",
        "the view must have the rows of the map", "the view must have the columns of the map"};
    for (int d = 0; d < checked; ++d)
      if (v.extent(d) != extents[d])
        return status::invalid(argument, messages[d], bound::exactly, extents[d], v.extent(d));
    const tensor_view<const block_word, 1> words(map.words, {map.bytes() / int64{sizeof(block_word)}});
    return check_apart(v, words, "block_map", "words overlaps the source");
  }
};

template <class Source>
struct block_source;

template <>
struct block_source<block_lists> : block_source_base {
  GIWA_HOST_DEVICE static status check(const block_map& map, const block_lists& lists) {
    const int sizes[] = {map.batch, map.heads, map.rows()}, all[] = {map.batch, map.heads, map.rows(), 0};
    const block_list both[] = {lists.full, lists.partial};
    constexpr const char* of_counts[] = {"full.counts", "partial.counts"};
    constexpr const char* of_indices[] = {"full.indices", "partial.indices"};
    for (int i = 0; i < 2; ++i) {
      if (is_absent(both[i]) && both[i].indices.size() != 0)
        return status::invalid(of_counts[i], "there are indices, but no counts");
      if (is_absent(both[i])) continue;
      if (const status s = check_view(both[i].counts, sizes, 3, map, of_counts[i]); !s.ok()) return s;
      if (const status s = check_view(both[i].indices, all, 3, map, of_indices[i]); !s.ok()) return s;
    }
    return {};
  }
  // A lane of a warp has two words of a row, so that rows of 2048 blocks read their lists once.
  static constexpr bool whole_rows = true;
  static constexpr int words_of_lane = 2;
  template <class Team>
  GIWA_HOST_DEVICE static void words(const Team& team, const block_map& map, const block_lists& lists,
                                     const block_place& at, block_bits (&bits)[words_of_lane]) {
    uint32 full[words_of_lane]{}, partial[words_of_lane]{};
    set_bits(team, map, lists.full, at, full), set_bits(team, map, lists.partial, at, partial);
    for (int i = 0; i < words_of_lane; ++i) bits[i] = {full[i] | partial[i], full[i]};
  }
  /// Sets the bits of `count` numbers, one every `step` elements. Those that are no columns are counted with the first word.
  template <class Team>
  GIWA_HOST_DEVICE static void set_bits(const Team& team, const block_map& map, const int* numbers, int64 step,
                                        int64 count, int bad, const block_place& at, uint32 (&bits)[words_of_lane]) {
    for (int64 first = 0; first < count; first += Team::lanes) {
      const int64 i = first + team.lane();
      int column = i < count ? numbers[i * step] : -1;
      if (column < 0 || column >= map.columns()) bad += i < count ? 1 : 0, column = -1;
      const int left = count - first < Team::lanes ? static_cast<int>(count - first) : Team::lanes;
      for (int lane = 0; lane < left; ++lane) {
        const int of_lane = team.from(column, lane), word = (of_lane >> 5) - at.word - team.lane();
        for (int k = 0; k < words_of_lane; ++k)
          if (word == k * Team::lanes) bits[k] |= uint32{1} << (of_lane & 31);
      }
    }
    if (at.word == 0 && map.errors != nullptr) team.add(map.errors, team.sum(bad));
  }

 private:
  GIWA_HOST_DEVICE static bool is_absent(const block_list& list) {
    return list.counts.data() == nullptr && list.counts.size() == 0;
  }
  template <class Team>
  GIWA_HOST_DEVICE static void set_bits(const Team& team, const block_map& map, const block_list& list,
                                        const block_place& at, uint32 (&bits)[words_of_lane]) {
    if (is_absent(list)) return;
    const auto& c = list.counts;
    const auto& n = list.indices;
    const int64 said = c.data()[at.batch * c.stride(0) + at.head * c.stride(1) + at.row * c.stride(2)];
    const int64 count = said < 0 ? 0 : said > n.extent(3) ? n.extent(3) : said;
    set_bits(team, map, n.data() + (at.batch * n.stride(0) + at.head * n.stride(1) + at.row * n.stride(2)), n.stride(3),
             count, said != count && team.lane() == 0 ? 1 : 0, at, bits);
  }
};

template <>
struct block_source<block_rows> : block_source_base {
  GIWA_HOST_DEVICE static status check(const block_map& map, const block_rows& rows) {
    const int sizes[] = {map.batch, map.heads, map.rows() + 1}, any[] = {0};
    if (const status s = check_view(rows.offsets, sizes, 3, map, "offsets"); !s.ok()) return s;
    return check_view(rows.indices, any, 0, map, "indices");
  }
  static constexpr bool whole_rows = true;
  static constexpr int words_of_lane = block_source<block_lists>::words_of_lane;
  template <class Team>
  GIWA_HOST_DEVICE static void words(const Team& team, const block_map& map, const block_rows& rows,
                                     const block_place& at, block_bits (&bits)[words_of_lane]) {
    const auto& o = rows.offsets;
    const int* const of_row = o.data() + (at.batch * o.stride(0) + at.head * o.stride(1) + at.row * o.stride(2));
    const int64 first = of_row[0], end = of_row[o.stride(2)], all = rows.indices.extent(0);
    const bool right = 0 <= first && first <= end && end <= all;
    uint32 full[words_of_lane]{};
    block_source<block_lists>::set_bits(team, map, rows.indices.data() + (right ? first * rows.indices.stride(0) : 0),
                                        rows.indices.stride(0), right ? end - first : 0,
                                        !right && team.lane() == 0 ? 1 : 0, at, full);
    for (int i = 0; i < words_of_lane; ++i) bits[i] = {full[i], full[i]};
  }
};

/// The scores of the blocks of a row.
struct block_scores : block_source_base {
  template <class Source>
  GIWA_HOST_DEVICE static status check_scores(const block_map& map, const Source& source) {
    const int sizes[] = {map.batch, map.heads, map.rows(), map.columns()};
    return check_view(source.scores, sizes, 4, map, "scores");
  }
  GIWA_HOST_DEVICE static float score(const tensor_view<const float, 4>& s, const block_place& at, int column) {
    return s.data()[at.batch * s.stride(0) + at.head * s.stride(1) + at.row * s.stride(2) + column * s.stride(3)];
  }
  /// The bits of the blocks of a word for which f(score) is true.
  template <class Team, class F>
  GIWA_HOST_DEVICE static uint32 bits_where(const Team& team, const block_map& map,
                                            const tensor_view<const float, 4>& scores, const block_place& at,
                                            const F& f) {
    uint32 bits = 0;
    for (int i = team.lane(), column; i < 32 && (column = 32 * at.word + i) < map.columns(); i += Team::lanes)
      if (f(score(scores, at, column))) bits |= uint32{1} << i;
    return team.any_bits(bits);
  }
};

template <>
struct block_source<score_threshold> : block_scores {
  GIWA_HOST_DEVICE static status check(const block_map& map, const score_threshold& source) {
    return check_scores(map, source);
  }
  template <class Team>
  GIWA_HOST_DEVICE static block_bits word(const Team& team, const block_map& map, const score_threshold& source,
                                          const block_place& at, row_state&) {
    const uint32 bits = bits_where(team, map, source.scores, at, [&](float x) { return x >= source.least; });
    return {bits, bits};
  }
};

template <>
struct block_source<score_top> : block_scores {
  static constexpr bool whole_rows = true;
  /// The score of the last block that is visible, and how many blocks with this score still are.
  struct row_state {
    uint32 last;
    int ties;
  };

  GIWA_HOST_DEVICE static status check(const block_map& map, const score_top& source) {
    if (source.count < 0)
      return status::invalid("count", "the number of blocks is negative", bound::at_least, 0, source.count);
    return check_scores(map, source);
  }
  /// Finds the last score bit by bit: the largest number that at least `count` scores reach.
  template <class Team>
  GIWA_HOST_DEVICE static row_state begin_row(const Team& team, const block_map& map, const score_top& source,
                                              const block_place& at) {
    const auto reach = [&](uint32 least) {
      int n = 0;
      for (int column = team.lane(); column < map.columns(); column += Team::lanes)
        n += order(score(source.scores, at, column)) >= least ? 1 : 0;
      return team.sum(n);
    };
    uint32 last = 0;
    for (int bit = 31; bit >= 0; --bit)
      if (const uint32 next = last | uint32{1} << bit; reach(next) >= source.count) last = next;
    // No score has the greatest number, to which a count of 0 leads; fewer scores than `count` lead to 0: all but NaN are taken.
    return {last, last == 0 || last == ~uint32{0} ? 0 : source.count - reach(last + 1)};
  }
  template <class Team>
  GIWA_HOST_DEVICE static block_bits word(const Team& team, const block_map& map, const score_top& source,
                                          const block_place& at, row_state& state) {
    const auto bits = [&](bool equal) {
      return bits_where(team, map, source.scores, at, [&](float x) {
        const uint32 n = order(x);
        return equal ? n == state.last : n > state.last;
      });
    };
    uint32 taken = bits(false);
    for (uint32 ties = bits(true); ties != 0 && state.ties > 0; --state.ties) {
      const uint32 first = ties & (~ties + 1);
      taken |= first, ties ^= first;
    }
    return {taken, taken};
  }

 private:
  /// A number of the same order as x, from 1 on; 0 for NaN.
  GIWA_HOST_DEVICE static uint32 order(float x) {
    if (x != x) return 0;
    const float normal = x == 0 ? 0.0f : x;  // -0 equals 0
    const uint32 bits = __builtin_bit_cast(uint32, normal);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  }
};

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
