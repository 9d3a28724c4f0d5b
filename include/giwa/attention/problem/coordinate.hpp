// SPDX-License-Identifier: MIT
// Where a score stands: its batch, head, query and key, and what a tile of scores covers.
#ifndef GIWA_ATTENTION_PROBLEM_COORDINATE_HPP
#define GIWA_ATTENTION_PROBLEM_COORDINATE_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// Which key lies on the diagonal of a query, where the lengths differ: key = query (top_left), or the last key on the last
/// query's (bottom_right). unset stands for either, and serves where the lengths agree.
enum class alignment : int { unset, top_left, bottom_right };

/// The place of one score, for masks and score modifiers. All count from 0 within their own sequence.
struct attention_coord {
  int batch;     ///< which sequence
  int head;      ///< of the queries
  int query;     ///< row of the score matrix
  int key;       ///< column
  int diagonal;  ///< the key on this query's diagonal: query, or query + keys - queries; may lie outside the keys
};

/// A tile of scores of one head: queries [first_query, last_query], keys [first_key, last_key], both ends included.
struct score_tile {
  /// Both ends included; `offset` is diagonal - query.
  ///@{
  int batch, head;
  int first_query, last_query, first_key, last_key;
  int offset;  ///< diagonal - query

  GIWA_HOST_DEVICE constexpr int first_diagonal() const { return first_query + offset; }
  GIWA_HOST_DEVICE constexpr int last_diagonal() const { return last_query + offset; }
  ///@}
};

/// The sizes of a problem, for the checks of masks and score modifiers. Lengths that only the device knows are -1.
struct attention_sizes {
  /// Sequences, heads of q, rows of q and of k.
  ///@{
  int64 batch, heads, seq_q, seq_k;
  ///@}
};

/// What a mask leaves of a tile.
enum class tile_keep : int {
  none,  // not one score: the tile is not even loaded
  some,  // the mask is asked score by score
  all,   // every score: no comparison is made
};

}  // namespace giwa::inline GIWA_ABI

#endif
