// SPDX-License-Identifier: MIT
// Masks from data: a map of the visible blocks of scores, and the mask that reads it.
#ifndef GIWA_ATTENTION_PROBLEM_BLOCK_MAP_HPP
#define GIWA_ATTENTION_PROBLEM_BLOCK_MAP_HPP

#include <giwa/attention/problem/data_masks.hpp>
#include <giwa/attention/problem/masks.hpp>
#include <giwa/attention/problem/problem.hpp>

namespace giwa::inline GIWA_ABI {

/// 32 blocks that follow each other in a row of blocks. With the numbers of bits before it, a range of blocks of any length is
/// counted by two words.
struct alignas(16) block_word {
  uint32 visible;         ///< bit i: some score of block i is visible
  uint32 visible_before;  ///< bits of `visible` in the words before
  uint32 full;            ///< bit i: every score of block i is visible
  uint32 full_before;     ///< bits of `full` in the words before
};

/// Which blocks of scores are visible, for each sequence and head: sizes, and a view of memory that make_block_map() writes and
/// kernels read. Every block has block_queries x block_keys scores; the last ones of a row and column may have fewer.
/// `block_map map{.queries = n, .keys = n}; map.words = ...` of bytes() bytes. Trivially copyable.
struct block_map {
  block_word* words = nullptr;  ///< bytes() bytes, readable by the kernel
  int batch = 1;                ///< number of sequences, or 1: the map holds for all
  int heads = 1;                ///< number of heads of q, or 1: the map holds for all
  int queries = 0;              ///< queries of a sequence, of the longest if they differ
  int keys = 0;                 ///< keys of a sequence, of the longest if they differ
  int block_queries = 128;      ///< queries of a block, a power of two
  int block_keys = 128;         ///< keys of a block, a power of two
  bool by_keys = true;    ///< also has the blocks by columns, which attention_backward() reads. It is slower without
  int* errors = nullptr;  ///< make_block_map() adds the entries of lists that are out of range; may be null

  /// Returns the number of rows and of columns of blocks.
  ///@{
  GIWA_HOST_DEVICE constexpr int rows() const {
    return row_of(queries) + ((queries & (block_queries - 1)) != 0 ? 1 : 0);
  }
  GIWA_HOST_DEVICE constexpr int columns() const { return column_of(keys) + ((keys & (block_keys - 1)) != 0 ? 1 : 0); }
  ///@}
  /// Returns the row of blocks of a query, and the column of blocks of a key.
  ///@{
  GIWA_HOST_DEVICE constexpr int row_of(int query) const { return query >> bits_below(block_queries); }
  GIWA_HOST_DEVICE constexpr int column_of(int key) const { return key >> bits_below(block_keys); }
  ///@}
  /// Returns the bytes that `words` points to: 16 for 32 blocks, and as many again for `by_keys`.
  GIWA_HOST_DEVICE constexpr int64 bytes() const {
    const int64 of_rows = detail::saturating_product(rows(), row_words()),
                of_columns = by_keys ? detail::saturating_product(columns(), column_words()) : 0;
    return detail::saturating_product(detail::saturating_product(int64{batch} * heads, int64{sizeof(block_word)}),
                                      of_rows + of_columns);
  }
  /// Returns the first rule that the map breaks; without `words`, that its sizes break.
  GIWA_HOST_DEVICE status check() const {
    const int sizes[] = {batch, heads, queries, keys};
    constexpr const char* of_sizes[] = {"batch must be at least 1", "heads must be at least 1",
                                        "queries must not be negative", "keys must not be negative"};
    for (int i = 0; i < 4; ++i)
      if (const int least = i < 2 ? 1 : 0; sizes[i] < least)
        return status::invalid("block_map", of_sizes[i], bound::at_least, least, sizes[i]);
    for (int i = 2; i < 4; ++i)
      if (sizes[i] > attention_limits::length)
        return status::invalid("block_map", "queries and keys are limited to what the calls of attention take",
                               bound::at_most, attention_limits::length, sizes[i]);
    if (!is_power_of_two(block_queries) || !is_power_of_two(block_keys))
      return status::invalid("block_map", "block_queries and block_keys must be powers of two");
    if (errors != nullptr && words != nullptr) {
      const auto first = reinterpret_cast<uint64>(words), at = reinterpret_cast<uint64>(errors);
      if (at + sizeof(int) > first && at < first + static_cast<uint64>(bytes()))
        return status::invalid("errors", "errors overlaps words");
    }
    if (const status s = detail::check_alignment(errors, "errors"); !s.ok()) return s;
    if (words != nullptr) return detail::check_alignment(words, "block_map");
    return bytes() == 0 ? status{} : status::invalid("block_map", "words is null: it must point to bytes() bytes");
  }

  /// How many blocks of a range are visible, and how many are full.
  struct counts {
    int64 visible = 0;  ///< blocks of which some score is visible
    int64 full = 0;     ///< blocks of which every score is
  };
  /// Counts the blocks [first_row, end_row) x [first_column, end_column), which are within the map. Takes time for the rows or
  /// for the columns, whichever are fewer, or without `by_keys` for the rows.
  GIWA_HOST_DEVICE counts count(int sequence, int head, int first_row, int end_row, int first_column,
                                int end_column) const {
    counts sum;
    if (by_keys && end_column - first_column < end_row - first_row) {
      for (int c = first_column; c < end_column; ++c) add(sum, column(sequence, head, c), first_row, end_row);
    } else {
      for (int r = first_row; r < end_row; ++r) add(sum, row(sequence, head, r), first_column, end_column);
    }
    return sum;
  }
  /// Returns which of 32 tiles of t's queries and `size` keys each, from t.first_key on, have visible blocks, and which have only
  /// full ones, or with `Whole` only visible ones. Without an answer unless `size` is a power of two with at most 32 blocks.
  template <bool Whole = false>
  GIWA_HOST_DEVICE tile_bits visible_keys(const score_tile& t, int size) const {
    const axis rows_of{t.first_query, t.last_query, queries, bits_below(block_queries)},
        columns_of{t.first_key, t.last_key, keys, bits_below(block_keys)};
    return tiles<Whole>(row(t.batch, t.head, 0), row_words(), rows_of, columns_of, size);
  }
  /// Returns which of 32 keys from `key` on are in visible blocks of a query's row.
  GIWA_HOST_DEVICE uint32 visible_keys_of(int sequence, int head, int query, int key) const {
    if (query >= queries) return 0;
    const block_word* const line = row(sequence, head, row_of(query));
    uint32 found = 0;
    for (int i = 0; i < 32 && key + i < keys;) {
      const int at = key + i, column = column_of(at), rest = block_keys - (at & (block_keys - 1)),
                left = rest < keys - at ? rest : keys - at;
      const uint32 of_block = left < 32 ? (uint32{1} << left) - 1 : ~uint32{0};
      if ((line[column / 32].visible >> column % 32 & 1) != 0) found |= of_block << i;
      i += left;
    }
    return found;
  }
  /// The same of tiles of t's keys and `size` queries each. Without `by_keys` there is no answer.
  template <bool Whole = false>
  GIWA_HOST_DEVICE tile_bits visible_queries(const score_tile& t, int size) const {
    if (!by_keys) return {};
    const axis rows_of{t.first_query, t.last_query, queries, bits_below(block_queries)},
        columns_of{t.first_key, t.last_key, keys, bits_below(block_keys)};
    return tiles<Whole>(column(t.batch, t.head, 0), column_words(), columns_of, rows_of, size);
  }
  /// Returns the words of a row of blocks, row_words(), and of a column, column_words().
  ///@{
  GIWA_HOST_DEVICE block_word* row(int sequence, int head, int r) const {
    return words + (matrix(sequence, head) * rows() + r) * row_words();
  }
  GIWA_HOST_DEVICE block_word* column(int sequence, int head, int c) const {
    return words + int64{batch} * heads * rows() * row_words() +
           (matrix(sequence, head) * columns() + c) * column_words();
  }
  GIWA_HOST_DEVICE constexpr int row_words() const { return columns() / 32 + 1; }
  GIWA_HOST_DEVICE constexpr int column_words() const { return rows() / 32 + 1; }
  ///@}

 private:
  GIWA_HOST_DEVICE static constexpr int bits_below(int power_of_two) {
    return popcount(static_cast<uint32>(power_of_two) - 1);
  }
  GIWA_HOST_DEVICE int64 matrix(int sequence, int head) const {
    return int64{batch == 1 ? 0 : sequence} * heads + (heads == 1 ? 0 : head);
  }
  /// A range of queries or keys, of how many the map has, in blocks of 2^bits.
  struct axis {
    int first, last, length, bits;
  };
  /// The tiles of `size` from along.first on, in lines of `words` words, of which `lines` is the first of the map.
  template <bool Whole>
  GIWA_HOST_DEVICE static tile_bits tiles(const block_word* lines, int words, const axis& across, const axis& along,
                                          int size) {
    const int each = bits_below(size) - along.bits;  // a tile has 2^each blocks
    if (!is_power_of_two(size) || each > 5) return {};
    if (across.first >= across.length || along.first >= along.length) return {0, 0};
    const bool within = across.last < across.length;
    const int end = ((within ? across.last : across.length - 1) >> across.bits) + 1;
    tile_bits found{0, within ? ~uint32{0} : 0};
    for (int line = across.first >> across.bits; line < end; ++line) {
      const tile_bits t = tiles_of_line<Whole>(lines + int64{line} * words, words, along, size, each);
      found = {found.visible | t.visible, found.full & t.full};
    }
    // A tile that ends after the map is not full.
    if (const int whole = (along.length - along.first) >> bits_below(size); whole < 32)
      found.full &= (uint32{1} << whole) - 1;
    return found;
  }
  template <bool Whole>
  GIWA_HOST_DEVICE static tile_bits tiles_of_line(const block_word* line, int words, const axis& along, int size,
                                                  int each) {
    const int block = along.first >> along.bits;
    tile_bits b = blocks_from<Whole>(line, words, block), t{0, 0};
    if (each == 0) return b;
    const int first = each < 0 ? (along.first & ((1 << along.bits) - 1)) / size : 0;  // tile of its block
    for (int i = 0; i < 32; ++i) {
      if (each > 0 && i > 0 && (i << each) % 32 == 0) b = blocks_from<Whole>(line, words, block + (i << each));
      const int at = each < 0 ? (first + i) >> -each : (i << each) % 32;
      const uint32 of_tile = each > 0 ? ((uint32{2} << ((1 << each) - 1)) - 1) << at : uint32{1} << at;
      t.visible |= ((b.visible & of_tile) != 0 ? uint32{1} : 0) << i;
      t.full |= ((b.full & of_tile) == of_tile ? uint32{1} : 0) << i;
    }
    return t;
  }
  /// The 32 blocks of a line from block `first` on.
  template <bool Whole>
  GIWA_HOST_DEVICE static tile_bits blocks_from(const block_word* line, int words, int first) {
    const int i = first / 32, bit = first % 32;
    if (i >= words) return {0, 0};
    tile_bits b{line[i].visible >> bit, line[i].full >> bit};
    if (bit > 0 && i + 1 < words) {
      b.visible |= line[i + 1].visible << (32 - bit);
      b.full |= line[i + 1].full << (32 - bit);
    }
    return {b.visible, Whole ? b.visible : b.full};
  }
  GIWA_HOST_DEVICE static void add(counts& sum, const block_word* of, int first, int end) {
    const counts from = before(of[first / 32], first % 32), to = before(of[end / 32], end % 32);
    sum.visible += to.visible - from.visible, sum.full += to.full - from.full;
  }
  /// The bits before bit `i` of a word.
  GIWA_HOST_DEVICE static counts before(const block_word& w, int i) {
    const uint32 below = (uint32{1} << i) - 1;
    return {int64{w.visible_before} + popcount(w.visible & below), int64{w.full_before} + popcount(w.full & below)};
  }
};

/// Returns which eighths of the queries see which eighths of the keys in some sequence and head of a map whose words the host can read.
GIWA_HOST_DEVICE inline visible_parts parts_of(const block_map& map) {
  const auto eighth = [](int length) { return (length - 1) / 8 + 1; };
  visible_parts parts{0, eighth(map.queries), eighth(map.keys)};
  for (int64 matrix = 0; matrix < int64{map.batch} * map.heads; ++matrix)
    for (int i = 0; i < 64; ++i) {
      const int query = i / 8 * parts.queries, key = i % 8 * parts.keys;
      if (query >= map.queries || key >= map.keys) continue;
      const auto end = [](int from, int size, int length) { return (size < length - from ? from + size : length) - 1; };
      const auto n = map.count(static_cast<int>(matrix / map.heads), static_cast<int>(matrix % map.heads),
                               map.row_of(query), map.row_of(end(query, parts.queries, map.queries)) + 1,
                               map.column_of(key), map.column_of(end(key, parts.keys, map.keys)) + 1);
      if (n.visible > 0) parts.bits |= uint64{1} << i;
    }
  return parts;
}

/// Keeps the scores of the full blocks of a map, and of its other visible blocks what another mask keeps: the mask of
/// FlexAttention's BlockMask. `block_sparse{map}` keeps visible blocks whole; `block_sparse{map} & causal{}` asks the other mask
/// in full blocks too. Blocks past the map are not visible. The map must have the same contents in attention_forward() and in
/// attention_backward(), and while either runs, so o must not overlap it: otherwise a backward pass may wait forever.
template <attention_mask Inner = full>
struct block_sparse {
  block_map map;  ///< of these queries and keys, written by make_block_map()
  Inner inner{};  ///< a mask, for blocks that are visible and not full

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = mask_traits<Inner>::any_range;
  static constexpr bool visible_is_exact = mask_traits<Inner>::keeps_all;
  GIWA_HOST_DEVICE constexpr int queries_of_block() const {
    const int of_inner = mask_traits<Inner>::queries_of_block(inner);
    return map.block_queries < of_inner ? map.block_queries : of_inner;
  }
  GIWA_HOST_DEVICE constexpr int keys_of_block() const {
    const int of_inner = mask_traits<Inner>::keys_of_block(inner);
    return map.block_keys < of_inner ? map.block_keys : of_inner;
  }
  GIWA_HOST_DEVICE bool operator()(attention_coord c) const {
    if (c.query >= map.queries || c.key >= map.keys) return false;
    const int column = map.column_of(c.key);
    const block_word& w = map.row(c.batch, c.head, map.row_of(c.query))[column / 32];
    if ((w.full >> column % 32 & 1) != 0) return true;
    return (w.visible >> column % 32 & 1) != 0 && inner(c);
  }
  GIWA_HOST_DEVICE tile_keep classify(const score_tile& t) const {
    if (t.first_query >= map.queries || t.first_key >= map.keys) return tile_keep::none;
    const bool within = t.last_query < map.queries && t.last_key < map.keys;
    const int first_row = map.row_of(t.first_query), first_column = map.column_of(t.first_key);
    const int end_row = map.row_of(t.last_query < map.queries ? t.last_query : map.queries - 1) + 1,
              end_column = map.column_of(t.last_key < map.keys ? t.last_key : map.keys - 1) + 1;
    const auto n = map.count(t.batch, t.head, first_row, end_row, first_column, end_column);
    if (n.visible == 0) return tile_keep::none;
    const int64 blocks = int64{end_row - first_row} * (end_column - first_column);
    if (within && n.full == blocks) return tile_keep::all;
    const tile_keep of_inner = detail::classify(inner, t);
    if (of_inner == tile_keep::none && n.full == 0) return tile_keep::none;
    return of_inner == tile_keep::all && within && n.visible == blocks ? tile_keep::all : tile_keep::some;
  }
  GIWA_HOST_DEVICE tile_bits visible_keys(const score_tile& t, int size) const {
    return map.template visible_keys<mask_traits<Inner>::keeps_all>(t, size);
  }
  GIWA_HOST_DEVICE tile_bits visible_queries(const score_tile& t, int size) const {
    return map.template visible_queries<mask_traits<Inner>::keeps_all>(t, size);
  }
  GIWA_HOST_DEVICE uint32 key_bits(attention_coord c) const
    requires mask_traits<Inner>::keeps_all
  {
    return map.visible_keys_of(c.batch, c.head, c.query, c.key);
  }
  GIWA_HOST_DEVICE constexpr detail::alignment_request requested_alignment() const { return detail::request_of(inner); }
  GIWA_HOST_DEVICE status check(const attention_sizes& s) const {
    if (const status own = map.check(); !own.ok()) return own;
    const int64 sizes[] = {s.batch, s.heads, s.seq_q, s.seq_k};
    const int of_map[] = {map.batch, map.heads, map.queries, map.keys};
    constexpr const char* messages[] = {
        "the map must have the batch of q, or 1", "the map must have the heads of q, or 1",
        "the map must have as many queries as q", "the map must have as many keys as k"};
    for (int i = 0; i < 4; ++i)
      if (of_map[i] != sizes[i] && !(i < 2 ? of_map[i] == 1 : sizes[i] < 0))
        return status::invalid("block_map", messages[i], bound::exactly, sizes[i], of_map[i]);
    return detail::check_callable(inner, s);
  }
  ///@}
};
#if !defined(GIWA_DOXYGEN)  // for compilers that deduce no aggregates
block_sparse(block_map) -> block_sparse<full>;
template <attention_mask Inner>
block_sparse(block_map, Inner) -> block_sparse<Inner>;
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
