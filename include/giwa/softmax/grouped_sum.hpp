// SPDX-License-Identifier: MIT
// The sum of a long row's exponentials, added up in groups of groups so that its rounding error stays small.
#ifndef GIWA_SOFTMAX_GROUPED_SUM_HPP
#define GIWA_SOFTMAX_GROUPED_SUM_HPP

#include <giwa/numeric/integer.hpp>
#include <giwa/softmax/state.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The state of one group of tiles, in memory that starts uninitialised.
template <class Compute>
struct group_state {
  Compute max, sum;
};

/// Adds up the states of the tiles of a row, which come in order. 16 tiles make a group, 16 groups a group of the next level, and
/// so on for `Levels` levels; the last level takes any number. So a tile's sum passes through at most 15 * (Levels - 1) +
/// tiles / 16^(Levels - 1) roundings. A plain loop has one rounding for each tile, and the errors of equal additions add up: over
/// 4096 tiles of equal elements they come to 200 units in the last place. The same holds for the factors that follow a maximum
/// that grows from tile to tile. Up to 16 tiles the result has the bits of a plain loop.
///
/// Each state is relative to the largest element so far, so maxima never fall from one state to the next. The first level is held
/// in the object, the others in memory of the caller: a kernel's registers serve the tile.
template <class Compute, class Exp, int Levels>
class grouped_sum {
 public:
  using state = softmax_state<Compute>;
  static constexpr int group = 16, levels_in_memory = Levels - 1;
  static_assert(Levels >= 2);

  /// Of the memory, level i takes groups[i * stride].
  GIWA_HOST_DEVICE grouped_sum(group_state<Compute>* groups, int stride) : groups_(groups), stride_(stride) {}

  /// The largest element so far; -inf before the first tile.
  GIWA_HOST_DEVICE Compute max() const { return first_.max; }

  /// Adds the state of the next tile, tile.max >= max().
  GIWA_HOST_DEVICE void add(const state& tile) {
    first_ = join(first_, tile);
    if (++tiles_ % group == 0) close_groups();
  }

  /// The state of all tiles.
  GIWA_HOST_DEVICE state total() const {
    state all = first_;
    int count = tiles_ / group;  // of closed groups of the level below
    for (int i = 0; i < levels_in_memory && count > 0; ++i, count /= group) all = join(at(i), all);
    return all;
  }

 private:
  /// The state of both; requires later.max >= earlier.max.
  GIWA_HOST_DEVICE static state join(const state& earlier, const state& later) {
    return {later.max, earlier.sum * Exp{}(earlier.max - later.reference()) + later.sum};
  }
  GIWA_HOST_DEVICE state at(int level) const {
    const group_state<Compute> g = groups_[level * stride_];
    return {g.max, g.sum};
  }

  /// Adds the group that is complete to the next level; the same there, where that completes one.
  GIWA_HOST_DEVICE void close_groups() {
    state closed = first_;
    first_.sum = 0;
    int count = tiles_ / group;
    for (int i = 0;; ++i, count /= group) {
      if (count > 1) closed = join(at(i), closed);  // the level has an entry, which is a sum of 0 after it was closed
      const bool full = i + 1 < levels_in_memory && count % group == 0;
      groups_[i * stride_] = {closed.max, full ? Compute(0) : closed.sum};
      if (!full) return;
    }
  }

  state first_;
  int tiles_ = 0;
  group_state<Compute>* groups_;
  int stride_;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
