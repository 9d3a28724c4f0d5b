// SPDX-License-Identifier: MIT
// Divided work tiles.
#ifndef GIWA_ATTENTION_SUMS_DIVIDED_TILE_CUH
#define GIWA_ATTENTION_SUMS_DIVIDED_TILE_CUH

#include <giwa/attention/work/find_split.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Finds the split of a block of the second launch, whose lengths are written: all blocks of the first one have waited for the kernel before.
/// `space`: shared memory that is not used yet.
template <int Most = 32, class Block, class Params>
GIWA_DEVICE void find_split_of_merge(const Block& block, const Params& p, int split, split_search& s, auto& space) {
  if (!p.early) {
    find_split(block, p.call, p.shape, split, p.leaf_keys, p.tile_rows, s);
  } else if (block.warp() == 0) {
    static_assert(sizeof space >= sizeof(int) * Most);
    const split_position found =
        find_split_early<Most>(block, p.call, p.shape, split, p.leaf_keys, s, reinterpret_cast<int*>(&space));
    if (block.lane() == 0) s.found = found;
  }
  block.sync();
}

/// There is a block for each split and column of heads; the blocks of the splits that begin in the work tile share its rows.
template <class Params>
class divided_tile {
 public:
  int rank, blocks;  // of this block among those that share the work tile's rows

  GIWA_DEVICE divided_tile(const Params& p, int column) : p_(p), column_(column) {}

  /// Whether the first leaf of a split is of a divided work tile, which this becomes.
  GIWA_DEVICE bool find(const split_position& found) {
    const int64 length = found.length;
    if (found.leaves() <= 0 || found.slots(p_.shape) == 0) return false;
    few_rows_work_tile& work = work_;
    work.sequence = found.sequence, work.leaves = found.leaves_of_sequence;
    const int count = work.leaves.count();
    const int in_sequence = static_cast<int>(quotient_of_leaves(found.before, count));
    split_length_ = length;
    begin_ = found.begin() - (found.before - int64{in_sequence} * count);
    first_split_ = split_of(begin_), last_split_ = split_of(begin_ + count - 1);
    if (first_split_ == last_split_) return false;
    work.head = column_, work.row_tile = in_sequence;
    if (p_.shape.heads_in_column != 1) {
      work.head = in_sequence / work.leaves.row_tiles;
      work.row_tile = in_sequence % work.leaves.row_tiles;
    }
    return true;
  }
  /// Finds the place of the block of a split among those that share the rows.
  GIWA_DEVICE void share_rows(int split) {
    const int64 first =
        first_split_ +
        (first_split_ * split_length_ != begin_ ? 1 : 0);  // the first split that begins in the work tile
    rank = static_cast<int>(split - first), blocks = static_cast<int>(last_split_ - first) + 1;
  }

  GIWA_DEVICE const cached_sequence& sequence() const { return work_.sequence; }

 protected:
  const Params& p_;
  const int column_;
  few_rows_work_tile work_;
  int64 split_length_, begin_;      // begin: number of the work tile's first leaf among all
  int64 first_split_, last_split_;  // those that have leaves of the work tile

 private:
  /// leaf / split_length_
  GIWA_DEVICE int64 split_of(int64 leaf) const {
    return split_length_ >> 31 == 0 ? quotient_of_leaves(leaf, static_cast<int>(split_length_)) : leaf / split_length_;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
