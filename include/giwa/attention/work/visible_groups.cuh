// SPDX-License-Identifier: MIT
// The visible tiles of a mask of blocks, which a warp finds 32 at once.
#ifndef GIWA_ATTENTION_WORK_VISIBLE_GROUPS_CUH
#define GIWA_ATTENTION_WORK_VISIBLE_GROUPS_CUH

#include <giwa/attention/work/visible_tiles.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Walks over the visible tiles [first, end) of a list, up or down, and says what `Parts` parts of 64 rows see of each. Each lane of a
/// warp asks the mask about a group of 32 tiles at once; tiles that are neither empty nor full are then classified, one in each lane.
/// All lanes hold the same state, but for the answers.
template <class List, int Parts, bool Descends = false>
class visible_groups {
 public:
  GIWA_DEVICE visible_groups(const List& list, int first, int end) : list_(list), first_(first), end_(end) {}

  /// Returns the next visible tile, or -1.
  template <class Block>
  GIWA_DEVICE int next(const Block& block) {
    while (left_ == 0) {
      while (groups_ == 0) {
        if (section_ >= end_ - first_) return -1;
        of_group_ = ask(section_ + size * block.lane());
        groups_ = block.ballot(of_group_.visible != 0);
        section_ += size * size;
      }
      const int group = __ffs(static_cast<int>(groups_)) - 1;
      groups_ &= groups_ - 1;
      base_ = section_ - size * (size - group);
      classify_group(block, block.shuffle(of_group_.visible, group), block.shuffle(of_group_.full, group));
    }
    bit_ = __ffs(static_cast<int>(left_)) - 1;
    left_ &= left_ - 1;
    return tile(base_ + bit_);
  }

  /// What is visible under the mask of the tile that was returned last, for all rows, and for a part of them; all lanes ask.
  ///@{
  template <class Block>
  GIWA_DEVICE tile_keep keep(const Block& block) const {
    return static_cast<tile_keep>(block.shuffle(answers_, bit_) & 3);
  }
  template <class Block>
  GIWA_DEVICE tile_keep keep(const Block& block, int part) const {
    return static_cast<tile_keep>(block.shuffle(answers_, bit_) >> 2 * (part + 1) & 3);
  }
  ///@}
  /// Whether a part may see the tile that was returned last, or one after it.
  template <class Block>
  GIWA_DEVICE bool needs_later(const Block& block, int part) const {
    if constexpr (Parts == 1) return true;
    const bool sees = (answers_ >> 2 * (part + 1) & 3) != static_cast<uint32>(tile_keep::none);
    return block.ballot(sees) >> bit_ != 0 || has_more_groups();
  }
  /// Whether fewer than n tiles come after the one that was returned last.
  GIWA_DEVICE bool has_fewer_than(int n) const { return !has_more_groups() && __popc(left_) < n; }

 private:
  static constexpr int size = 32, part_rows = 64, all_rows = 0x7fffffff;

  /// The tile at a place of the walk.
  GIWA_DEVICE int tile(int at) const { return Descends ? end_ - 1 - at : first_ + at; }
  GIWA_DEVICE bool has_more_groups() const { return groups_ != 0 || section_ < end_ - first_; }
  /// What is visible of the group from a place on.
  GIWA_DEVICE tile_bits ask(int at) const {
    const int left = end_ - first_ - at, count = left < size ? left : size;
    if (count <= 0) return {0, 0};
    tile_bits found = list_.visible_from(Descends ? tile(at + count - 1) : tile(at));
    if constexpr (Descends) found = {__brev(found.visible) >> (size - count), __brev(found.full) >> (size - count)};
    const uint32 of_tiles = ~uint32{0} >> (size - count);
    return {found.visible & of_tiles, found.full & of_tiles};
  }
  template <class Block>
  GIWA_DEVICE void classify_group(const Block& block, uint32 visible, uint32 full) {
    const int n = tile(base_ + block.lane()), first_row = list_.first_row();
    tile_keep whole = keep_of((full >> block.lane() & 1) != 0, (visible >> block.lane() & 1) != 0);
    left_ = visible;
    if ((visible & ~full) != 0) {
      if (whole == tile_keep::some) whole = list_.visible_by_mask(n, 1, first_row, all_rows);
      left_ = block.ballot(whole != tile_keep::none);
    }
    answers_ = static_cast<uint32>(whole);
    for (int i = 0; i < Parts; ++i) {
      tile_keep own = whole;
      if (Parts > 1 && whole == tile_keep::some)
        own = list_.visible_by_mask(n, 1, first_row + i * part_rows, part_rows);
      else if (first_row + i * part_rows > list_.last_row())
        own = tile_keep::none;
      answers_ |= static_cast<uint32>(own) << 2 * (i + 1);
    }
  }

  const List& list_;
  int first_, end_;
  // Places in the walk: of the next 32 groups, and of the group; the tile in the group.
  int section_ = 0, base_ = 0, bit_ = 0;
  uint32 groups_ = 0;     // those of the section that come after the group and have visible tiles
  uint32 left_ = 0;       // tiles of the group that are not yet returned
  tile_bits of_group_{};  // this lane's group of the section
  uint32 answers_ = 0;    // what all rows, and the parts, see of this lane's tile of the group: two bits each
};

/// Returns the last visible tile before n, and the first one from n on, or -1; the whole warp calls it.
///@{
template <class Block, class List>
GIWA_DEVICE int previous_of_warp(const Block& block, const List& list, int n) {
  return visible_groups<List, 1, true>(list, 0, n).next(block);
}
template <class Block, class List>
GIWA_DEVICE int next_of_warp(const Block& block, const List& list, int n) {
  return visible_groups<List, 1>(list, n, list.count()).next(block);
}
///@}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
