// SPDX-License-Identifier: MIT
// Where a partial (m, l, O) lies in the workspace.
#ifndef GIWA_ATTENTION_SUMS_PARTIAL_SLOT_HPP
#define GIWA_ATTENTION_SUMS_PARTIAL_SLOT_HPP

#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

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

}  // namespace giwa::inline GIWA_ABI::detail

#endif
