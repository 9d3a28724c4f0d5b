// SPDX-License-Identifier: MIT
// The coordinates of a score, the diagonal of a sequence, and what a tile of scores covers.
#ifndef GIWA_ATTENTION_PROBLEM_COORDINATE_HPP
#define GIWA_ATTENTION_PROBLEM_COORDINATE_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// The diagonal of a score matrix: the key on the diagonal of query i is i + offset, where the offset is a number or
/// follows from the lengths. `alignment::top_left`, `alignment::bottom_right` and `alignment::offset(n)` are its
/// values.
class alignment {
 public:
  /// The alignments that have names.
  enum kind : int {
    unset,         ///< not chosen: for sequences with as many keys as queries, where top_left and bottom_right agree
    top_left,      ///< key = query: offset 0
    bottom_right,  ///< the last key is on the diagonal of the last query: offset keys - queries of each sequence
  };

  /// Unset.
  constexpr alignment() = default;
  /// An alignment by its name.
  GIWA_HOST_DEVICE constexpr alignment(kind k) : kind_(k) {}
  /// The diagonal on which query 0 has key `n`, in every sequence and whatever the lengths: for a part of longer
  /// queries or keys, as in ring attention and chunked prefill. Negative where query 0 comes before the first key, at
  /// least keys where it comes after the last. 0 is top_left.
  GIWA_HOST_DEVICE static constexpr alignment offset(int64 n) {
    constexpr int most = 2147483647;
    alignment a(top_left);
    a.offset_ = n > most ? most : n < -most ? -most : static_cast<int>(n);
    return a;
  }

  /// Whether a diagonal was chosen.
  GIWA_HOST_DEVICE constexpr bool is_set() const { return kind_ != unset; }
  /// Whether the offset is keys - queries of each sequence.
  GIWA_HOST_DEVICE constexpr bool is_bottom_right() const { return kind_ == bottom_right; }
  /// The offset where it does not follow from the lengths, else 0.
  GIWA_HOST_DEVICE constexpr int fixed_offset() const { return offset_; }

  /// Whether two alignments mean the same diagonal for all lengths.
  GIWA_HOST_DEVICE friend constexpr bool operator==(const alignment& a, const alignment& b) {
    return a.kind_ == b.kind_ && a.offset_ == b.offset_;
  }

 private:
  kind kind_ = unset;
  int offset_ = 0;
};

/// The coordinates of one score, for masks and score modifiers. Queries and keys count from 0 within their own
/// sequence.
struct attention_coord {
  int batch;     ///< number of the sequence
  int head;      ///< head of q
  int query;     ///< row of the score matrix
  int key;       ///< column of the score matrix
  int diagonal;  ///< the key on the diagonal of this query; may be outside the keys, see alignment
};

/// A tile of scores of one head.
struct score_tile {
  int batch;        ///< number of the sequence
  int head;         ///< head of q
  int first_query;  ///< first row
  int last_query;   ///< last row, included
  int first_key;    ///< first column
  int last_key;     ///< last column, included
  int offset;       ///< diagonal - query

  /// The keys on the diagonals of the first and of the last query.
  ///@{
  GIWA_HOST_DEVICE constexpr int first_diagonal() const { return first_query + offset; }
  GIWA_HOST_DEVICE constexpr int last_diagonal() const { return last_query + offset; }
  ///@}
};

/// The sizes of a problem, for the checks of masks and score modifiers.
struct attention_sizes {
  int64 batch;  ///< number of sequences
  int64 heads;  ///< heads of q
  int64 seq_q;  ///< rows of q for each sequence, -1 for packed sequences
  int64 seq_k;  ///< rows of k for each sequence, -1 for packed sequences
};

/// What a mask keeps of a tile of scores.
enum class tile_keep : int {
  none,  ///< fully masked: the tile is not loaded
  some,  ///< mixed: the mask is evaluated for each score
  all,   ///< fully kept: the mask is not evaluated
};

/// What a mask keeps of 32 tiles of scores that follow each other: a bit for each.
struct tile_bits {
  uint32 visible = ~uint32{0};  ///< some score may be kept; without the bit the tile is fully masked
  uint32 full = 0;              ///< the tile is fully kept
};

}  // namespace giwa::inline GIWA_ABI

#endif
