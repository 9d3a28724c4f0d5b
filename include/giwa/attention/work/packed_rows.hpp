// SPDX-License-Identifier: MIT
// Packed rows: the queries of all heads that share a head of keys, as rows of one tile of scores, or of a partial (m, l, O).
#ifndef GIWA_ATTENTION_WORK_PACKED_ROWS_HPP
#define GIWA_ATTENTION_WORK_PACKED_ROWS_HPP

#include <giwa/attention/problem/cached_params.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Rows [first_row, first_row + rows) of a sequence and a head of keys: row r is query r / group, head r % group of the
/// heads that share the head of keys. The members are those of score_steps::bounds, with a row for the query.
struct packed_rows {
  int batch, first_head;
  int first_row, rows;
  int queries, keys, offset;
  fast_divisor group;

  GIWA_HOST_DEVICE int query(int row) const { return static_cast<int>(int64{first_row + row} / group); }
  GIWA_HOST_DEVICE int head(int row) const {
    return first_head + first_row + row - query(row) * static_cast<int>(group.divisor());
  }
  GIWA_HOST_DEVICE int end_row() const { return rows; }
  GIWA_HOST_DEVICE bool contain(int row, int key) const { return row < rows && key < keys; }
  GIWA_HOST_DEVICE attention_coord place(int row, int key) const {
    const int q = query(row);
    return {batch, head(row), q, key, q + offset};
  }
  /// The scores of keys [first_key, last_key] and all rows; a mask is asked about it in the heads of the group.
  GIWA_HOST_DEVICE score_tile tile(int first_key, int last_key) const {
    return {batch, first_head, query(0), query(rows - 1), first_key, last_key, offset};
  }
};

/// O of each row, not normalized, then m, in units of log2, and l of each row.
struct partial_slot {
  int rows, columns;

  /// The size of a slot, a multiple of 16 bytes.
  GIWA_HOST_DEVICE static constexpr int64 floats(int64 rows, int64 columns) {
    return rows * columns + round_up(2 * rows, 4);
  }
  /// Where O of a row, and its m and l, begin. What follows the rows is the kernel's: sums(rows) is its beginning.
  ///@{
  GIWA_HOST_DEVICE constexpr int output(int row) const { return row * columns; }
  GIWA_HOST_DEVICE constexpr int64 sums(int row) const { return int64{rows} * columns + 2 * row; }
  ///@}
};

/// The row map of packed rows, for score_steps.
struct rows_are_packed {
  int first_key;
  GIWA_HOST_DEVICE int query(int row, int) const { return row; }
  GIWA_HOST_DEVICE int key(int, int column) const { return first_key + column; }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
