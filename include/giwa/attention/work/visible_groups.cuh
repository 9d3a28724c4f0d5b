// SPDX-License-Identifier: MIT
// The visible tiles of a mask of blocks, which a warp finds 32 at once.
#ifndef GIWA_ATTENTION_WORK_VISIBLE_GROUPS_CUH
#define GIWA_ATTENTION_WORK_VISIBLE_GROUPS_CUH

#include <giwa/attention/work/visible_tiles.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Walks over the visible tiles [first, end) of a list, up or down, and says what `Parts` parts of 64 rows see of each. Each lane of a
/// warp asks the mask about a group of 32 tiles at once; tiles that are neither empty nor full are then classified, one in each lane.
/// All lanes hold the same state, but for the group that each one asked about.
template <class List, int Parts, bool Descends = false>
class visible_groups {
 public:
  GIWA_DEVICE visible_groups(const List& list, int first, int end) : list_(list), first_(first), end_(end) {}
  /// The same walk, whose first answers, those of first_groups() in the same lane, another warp has asked for.
  template <class Block>
  GIWA_DEVICE visible_groups(const Block& block, const List& list, int first, int end, tile_bits of_lane)
      : visible_groups(list, first, end) {
    begin_section(block, of_lane);
  }
  GIWA_DEVICE tile_bits first_groups(int lane) const { return ask(size * lane); }

  /// Returns the next visible tile, or -1. At a new group each lane calls begin_group(tile) with its own tile, or -1 if nothing of that
  /// is visible.
  template <class Block, class BeginGroup>
  GIWA_DEVICE int next(const Block& block, const BeginGroup& begin_group) {
    while (left_ == 0) {
      while (groups_ == 0) {
        if (section_ >= end_ - first_) return -1;
        begin_section(block, ask(section_ + size * block.lane()));
      }
      const int group = __ffs(static_cast<int>(groups_)) - 1;
      groups_ &= groups_ - 1;
      base_ = section_ - size * (size - group);
      classify_group(block, block.shuffle(of_group_.visible, group), block.shuffle(of_group_.full, group));
      begin_group((left_ >> block.lane() & 1) != 0 ? tile(base_ + block.lane()) : -1);
    }
    bit_ = __ffs(static_cast<int>(left_)) - 1;
    left_ &= left_ - 1;
    return tile(base_ + bit_);
  }
  template <class Block>
  GIWA_DEVICE int next(const Block& block) {
    return next(block, [](int) {});
  }
  /// Returns the value of the lane that had the tile that was returned last in begin_group().
  template <class Block, class T>
  GIWA_DEVICE T of_tile(const Block& block, T value) const {
    return block.shuffle(value, bit_);
  }

  /// What is visible under the mask of the tile that was returned last, for all rows, and for a part of them.
  ///@{
  GIWA_DEVICE tile_keep keep() const { return (full_ >> bit_ & 1) != 0 ? tile_keep::all : tile_keep::some; }
  GIWA_DEVICE tile_keep keep(int part) const {
    if constexpr (Parts == 1) return keep();
    return keep_of((full_of_[part] >> bit_ & 1) != 0, (visible_of_[part] >> bit_ & 1) != 0);
  }
  ///@}
  /// Whether a part may see the tile that was returned last, or one after it.
  GIWA_DEVICE bool needs_later(int part) const {
    return Parts == 1 || visible_of_[part] >> bit_ != 0 || has_more_groups();
  }
  /// Whether fewer than n tiles come after the one that was returned last.
  GIWA_DEVICE bool has_fewer_than(int n) const { return !has_more_groups() && __popc(left_) < n; }

 private:
  static constexpr int size = 32, part_rows = 64, all_rows = 0x7fffffff;

  /// The tile at a place of the walk.
  GIWA_DEVICE int tile(int at) const { return Descends ? end_ - 1 - at : first_ + at; }
  template <class Block>
  GIWA_DEVICE void begin_section(const Block& block, tile_bits of_lane) {
    of_group_ = of_lane;
    groups_ = block.ballot(of_lane.visible != 0);
    section_ += size * size;
  }
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
    left_ = visible, full_ = full;
    GIWA_UNROLL
    for (int c = 0; c < Parts; ++c)
      visible_of_[c] = full_of_[c] = first_row + c * part_rows > list_.last_row() ? 0 : full;
    if ((visible & ~full) == 0) return;
      // One copy of the code that asks, for all rows and then for each part: it is as large as the rest of a loader.
#pragma unroll 1
    for (int part = -1; part < (Parts > 1 ? Parts : 0); ++part) {
      const int first = part < 0 ? first_row : first_row + part * part_rows;
      tile_keep own = first > list_.last_row() ? tile_keep::none : whole;
      if (own == tile_keep::some) own = list_.visible_by_mask(n, 1, first, part < 0 ? all_rows : part_rows);
      const uint32 some = block.ballot(own != tile_keep::none), all = block.ballot(own == tile_keep::all);
      if (part < 0) whole = own, left_ = some, full_ = all;
      GIWA_UNROLL
      for (int c = 0; c < Parts; ++c)
        if (part == c) visible_of_[c] = some, full_of_[c] = all;
    }
  }

  const List& list_;
  int first_, end_;
  // Places in the walk: of the next 32 groups, and of the group; the tile in the group.
  int section_ = 0, base_ = 0, bit_ = 0;
  uint32 groups_ = 0;           // those of the section that come after the group and have visible tiles
  uint32 left_ = 0, full_ = 0;  // tiles of the group that are not yet returned, and those that all rows see
  tile_bits of_group_{};        // this lane's group of the section
  uint32 visible_of_[Parts], full_of_[Parts];  // tiles of the group that a part sees, and that it sees as a whole
};

/// Returns the last visible tile before n, or -1 if there is none. Each thread may ask about another list: a warp answers 32 questions in
/// the time of one.
template <class List>
GIWA_DEVICE int visible_before(const List& list, int n) {
  for (int place = 0; place < n; place += 32) {
    const int count = n - place < 32 ? n - place : 32, from = n - place - count;
    const tile_bits found = list.visible_from(from);
    for (uint32 left = found.visible & ~uint32{0} >> (32 - count); left != 0;) {
      const int bit = 31 - __clz(static_cast<int>(left));
      if (List::is_exact || (found.full >> bit & 1) != 0 || list.visible_by_mask(from + bit) != tile_keep::none)
        return from + bit;
      left &= ~(uint32{1} << bit);
    }
    // By runs of tiles that double, which take ten times as long as a step of 32 tiles.
    if (List::any_range && place >= 96) return list.previous(from);
  }
  return -1;
}

/// What of the leaves of a work tile of packed rows is visible, for a warp that walks over them upwards. Of a mask of blocks each lane asks
/// about 32 leaves in a head; leaves that are neither empty nor full are then classified one by one. `ByLanes`: of another mask each lane
/// asks about one of 32 leaves, which takes as long as to ask about one; then a leaf may be seen as a whole that has keys past the end.
template <class Mask, int LeafKeys, bool ByLanes = false>
class visible_leaves {
 public:
  /// Under the mask, and before the end of the keys.
  template <class Block, class Call, class Rows>
  GIWA_DEVICE tile_keep of(const Block& block, const Call& call, const Rows& rows, int leaf) {
    if constexpr (by_lanes) {
      if (leaf >= bits_.whole_end) {
        const tile_keep of_lane = classify<false>(call, rows, leaf + block.lane());
        const uint32 whole = block.ballot(of_lane == tile_keep::all),
                     visible = block.ballot(of_lane != tile_keep::none);
        bits_.whole_end = leaf + (whole == ~uint32{0} ? 32 : __ffs(static_cast<int>(~whole)) - 1);
        if (leaf == bits_.whole_end) return (visible & 1) != 0 ? tile_keep::some : tile_keep::none;
      }
      return tile_keep::all;
    }
    if constexpr (by_groups) {
      const int first = leaf * LeafKeys;
      if (first >= rows.keys) return tile_keep::none;
      if (bits_.first < 0 || leaf - bits_.first >= 32) ask(block, call, rows, leaf);
      const int bit = leaf - bits_.first;
      if ((bits_.visible >> bit & 1) == 0) return tile_keep::none;
      if ((bits_.full >> bit & 1) != 0) return rows.keys - first >= LeafKeys ? tile_keep::all : tile_keep::some;
    }
    return classify<true>(call, rows, leaf);
  }
  /// The next leaf is one of another work tile.
  GIWA_DEVICE void reset() {
    if constexpr (by_groups) bits_.first = -1;
    if constexpr (by_lanes) bits_.whole_end = 0;
  }

 private:
  static constexpr bool by_groups = mask_traits<Mask>::has_blocks && mask_traits<Mask>::finds_visible;
  static constexpr bool by_lanes = ByLanes && !by_groups;
  struct group {
    int first = -1;
    uint32 visible = 0, full = 0;
  };
  struct whole_leaves {
    int whole_end = 0;  // those from the last one that was asked about to here are seen as a whole
  };
  struct no_group {};

  template <bool CountsEnd, class Call, class Rows>
  GIWA_DEVICE static tile_keep classify(const Call& call, const Rows& rows, int leaf) {
    const int first = leaf * LeafKeys;
    if (first >= rows.keys) return tile_keep::none;
    const bool whole = rows.keys - first >= LeafKeys;
    const score_tile t = rows.tile(first, whole ? first + LeafKeys - 1 : rows.keys - 1);
    const tile_keep visible = classify_heads(call.mask, t, call.heads_per_kv);
    return CountsEnd && visible == tile_keep::all && !whole ? tile_keep::some : visible;
  }
  template <class Block, class Call, class Rows>
  GIWA_DEVICE void ask(const Block& block, const Call& call, const Rows& rows, int leaf) {
    const int left = (rows.keys - leaf * LeafKeys - 1) / LeafKeys, count = left < 31 ? left : 31;
    score_tile t = rows.tile(leaf * LeafKeys, (leaf + count) * LeafKeys + LeafKeys - 1);
    if (t.last_key >= rows.keys) t.last_key = rows.keys - 1;
    tile_bits found{0, ~uint32{0}};
    const int first_head = t.head, heads = mask_traits<Mask>::any_head ? 1 : call.heads_per_kv;
    for (int h = block.lane(); h < heads; h += 32) {
      t.head = first_head + h;
      const tile_bits of_head = visible_tiles_of<true>(call.mask, t, LeafKeys);
      found = {found.visible | of_head.visible, found.full & of_head.full};
    }
    for (int lane = 16; lane > 0; lane /= 2)
      found = {found.visible | block.shuffle_xor(found.visible, lane),
               found.full & block.shuffle_xor(found.full, lane)};
    bits_ = {leaf, found.visible, found.full};
  }

  [[no_unique_address]] stdlib::conditional_t<by_groups, group, stdlib::conditional_t<by_lanes, whole_leaves, no_group>>
      bits_{};
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
