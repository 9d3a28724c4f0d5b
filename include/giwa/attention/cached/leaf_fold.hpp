// SPDX-License-Identifier: MIT
// The fixed tree in which the partial results of a sequence's leaves are merged, whoever computes them.
#ifndef GIWA_ATTENTION_CACHED_LEAF_FOLD_HPP
#define GIWA_ATTENTION_CACHED_LEAF_FOLD_HPP

#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

// A leaf is a fixed number of consecutive keys of a sequence; leaf n has the keys from n times that number on. Leaves are
// merged in order into nodes of 4 leaves, those into nodes of 64, and those into the result, also in order. A run is a
// range of leaves that one block folds. It does the merges whose operands it has, and hands on the other states; the
// merge of all runs of a sequence repeats what they left. So every merge of the tree has the same operands in any division
// into runs, and the result has the same bits.

/// The levels of the tree: leaves, nodes of 4, nodes of 64.
struct fold_levels {
  static constexpr int count = 3;
  /// Leaves of a node of a level.
  GIWA_HOST_DEVICE static constexpr int span(int level) { return level == 0 ? 1 : level == 1 ? 4 : 64; }
};

/// The states that the run [begin, end) of a sequence's leaves hands on, in this order: its first leaves, its first nodes
/// of 4, its nodes of 64, each up to where the tree has a node that begins in the run; then the unfinished nodes at its
/// end, the largest first. `begin` is 0 for the run that has the beginning of the sequence.
struct run_states {
  int first[fold_levels::count], count_of[fold_levels::count];  // complete nodes of each level
  bool unfinished[fold_levels::count];                          // [l]: a node of level l + 1, and for the last the result

  GIWA_HOST_DEVICE constexpr run_states(int begin, int end) : first{}, count_of{}, unfinished{} {
    for (int l = 0; l < fold_levels::count; ++l) {
      const int span = fold_levels::span(l), complete = end / span;
      first[l] = ceil_div(begin, span);
      int last = complete;  // one past the last node of this level that is handed on
      if (l + 1 < fold_levels::count) {
        const int parent = fold_levels::span(l + 1);
        const int own = round_up(begin, parent) / span;  // the first node whose parent begins in the run
        last = own < complete ? own : complete;
        unfinished[l] = end / parent * parent >= begin && end % parent / span > 0;
      } else {
        if (begin == 0) last = 0;
        unfinished[l] = begin == 0 && complete > 0;
      }
      count_of[l] = last > first[l] ? last - first[l] : 0;
    }
  }
  /// The number of states.
  GIWA_HOST_DEVICE constexpr int count() const {
    int n = 0;
    for (int l = 0; l < fold_levels::count; ++l) n += count_of[l] + (unfinished[l] ? 1 : 0);
    return n;
  }
  /// An upper bound of count() for any run of at most `leaves` leaves.
  GIWA_HOST_DEVICE static constexpr int64 most(int64 leaves) {
    constexpr int levels = fold_levels::count;
    int64 n = levels + leaves / fold_levels::span(levels - 1) + 1;
    for (int l = 0; l + 1 < levels; ++l) n += fold_levels::span(l + 1) / fold_levels::span(l) - 1;
    return n;
  }
};

/// The unfinished nodes of a fold: level[l] has the children of level l that came so far of a node of level l + 1, and the
/// last one those of the whole sequence. State has reset(), the state of no keys, and merge(later).
template <class State>
struct leaf_fold {
  State level[fold_levels::count];

  GIWA_HOST_DEVICE constexpr void reset() {
    GIWA_UNROLL
    for (int l = 0; l < fold_levels::count; ++l) level[l].reset();
  }

  /// Adds node n of a level. A node whose parent begins before the run is handed on, by emit(state).
  template <int Level, class Emit>
  GIWA_HOST_DEVICE constexpr void push(int n, const State& x, int begin, const Emit& emit) {
    if constexpr (Level + 1 == fold_levels::count) {
      if (begin == 0)
        level[Level].merge(x);
      else
        emit(x);
    } else {
      constexpr int parent_span = fold_levels::span(Level + 1), children = parent_span / fold_levels::span(Level);
      const int parent = n / children;
      if (parent * parent_span < begin) {
        emit(x);
      } else {
        level[Level].merge(x);
        if (n % children == children - 1) {
          push<Level + 1>(parent, level[Level], begin, emit);
          level[Level].reset();
        }
      }
    }
  }

  /// Hands on the unfinished nodes at the end of a run.
  template <class Emit>
  GIWA_HOST_DEVICE constexpr void flush(const run_states& states, const Emit& emit) const {
    GIWA_UNROLL
    for (int l = fold_levels::count - 1; l >= 0; --l)
      if (states.unfinished[l]) emit(level[l]);
  }

  /// Takes state number i of a run, in the order of run_states. Runs come in order.
  GIWA_HOST_DEVICE constexpr void replay(const run_states& states, int i, const State& x) {
    const auto nothing_left = [](const State&) {};
    if (i < states.count_of[0]) return push<0>(states.first[0] + i, x, 0, nothing_left);
    i -= states.count_of[0];
    if (i < states.count_of[1]) return push<1>(states.first[1] + i, x, 0, nothing_left);
    i -= states.count_of[1];
    if (i < states.count_of[2]) return push<2>(states.first[2] + i, x, 0, nothing_left);
    i -= states.count_of[2];
    GIWA_UNROLL
    for (int l = fold_levels::count - 1; l >= 0; --l)
      if (states.unfinished[l] && i-- == 0) level[l].merge(x);
  }

  /// Returns the result, after the last leaf of the sequence.
  GIWA_HOST_DEVICE constexpr const State& finish() {
    GIWA_UNROLL
    for (int l = 1; l < fold_levels::count; ++l) level[l].merge(level[l - 1]);
    return level[fold_levels::count - 1];
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
