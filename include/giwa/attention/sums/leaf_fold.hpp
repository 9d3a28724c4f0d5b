// SPDX-License-Identifier: MIT
// The fixed tree in which leaves of a sequence are merged.
#ifndef GIWA_ATTENTION_SUMS_LEAF_FOLD_HPP
#define GIWA_ATTENTION_SUMS_LEAF_FOLD_HPP

#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

// A leaf is a tile of keys, the smallest of this tree: a fixed number of consecutive keys of a sequence; leaf n has the keys
// from n times that number on. Leaves are merged in order: 4 leaves into a node, 4 of these into a node of 16, 4 of those into
// a node of 64, and all nodes of 64 into the result. A split is a range of leaves that one block folds. The block does the
// merges whose operands it has, and writes the other states, the partials, to the workspace. The merge of all splits of a
// sequence does the merges that are left. So every merge of the tree has the same operands in any division into splits, and
// the result has the same bits.

/// The levels of the tree: leaves, nodes of 4, of 16 and of 64.
struct fold_levels {
  static constexpr int count = 4;
  /// Leaves of a node of a level.
  GIWA_HOST_DEVICE static constexpr int span(int level) { return 1 << 2 * level; }
  GIWA_HOST_DEVICE static constexpr int largest_span() { return span(count - 1); }
};

/// The partials that the split [begin, end) of a sequence's leaves hands on, in this order: its first leaves, its first nodes
/// of 4, and so on, each up to where the tree has a larger node that begins in the split; then the unfinished nodes at its
/// end, the largest first. `begin` is 0 for the split that has the beginning of the sequence.
struct split_partials {
  int first[fold_levels::count], count_of[fold_levels::count];  // complete nodes of each level
  uint32 unfinished = 0;                // bit l: a node of level l + 1, and for the last the result
  int first_child[fold_levels::count];  // of that node

  GIWA_HOST_DEVICE constexpr split_partials(int begin, int end) : first{}, count_of{}, first_child{} {
    for (int l = 0; l < fold_levels::count; ++l) {
      const int span = fold_levels::span(l), complete = end / span;
      first[l] = ceil_div(begin, span);
      int last = complete;  // one past the last node of this level that is handed on
      if (l + 1 < fold_levels::count) {
        const int parent = fold_levels::span(l + 1);
        const int first_inner = round_up(begin, parent) / span;  // the first node whose parent begins in the split
        last = first_inner < complete ? first_inner : complete;
        if (end / parent * parent >= begin && end % parent / span > 0) unfinished |= 1u << l;
        first_child[l] = end / parent * (parent / span);
      } else {
        if (begin == 0) last = 0;
        if (begin == 0 && complete > 0) unfinished |= 1u << l;
      }
      count_of[l] = last > first[l] ? last - first[l] : 0;
    }
  }
  GIWA_HOST_DEVICE constexpr bool is_unfinished(int l) const { return (unfinished >> l & 1) != 0; }
  /// The number of partials.
  GIWA_HOST_DEVICE constexpr int count() const {
    int n = 0;
    for (int l = 0; l < fold_levels::count; ++l) n += count_of[l] + (is_unfinished(l) ? 1 : 0);
    return n;
  }
  /// Where partial number i belongs: it is a node of a level, or the first children of a node of the level above, which the
  /// split ends within. Then `node` is the first of these children.
  struct position {
    int level, node;
  };
  GIWA_HOST_DEVICE constexpr position position_of(int i) const {
    position p{fold_levels::count, 0};
    GIWA_UNROLL
    for (int l = 0; l < fold_levels::count; ++l) {
      if (p.level == fold_levels::count && i < count_of[l]) p = {l, first[l] + i};
      i -= count_of[l];
    }
    if (p.level < fold_levels::count) return p;
    GIWA_UNROLL
    for (int l = fold_levels::count - 1; l >= 0; --l)
      if (is_unfinished(l) && i-- == 0) p = {l, first_child[l]};
    return p;
  }
  /// Whether the first 4 of `count` positions are the children of one node, each a complete one. Then they may be
  /// merged in order, and added as that node. First children that one split has merged have one position, so the next number
  /// does not follow.
  GIWA_HOST_DEVICE static constexpr bool are_children(const position* positions, int count) {
    if (count < 4 || positions[0].level + 1 >= fold_levels::count || positions[0].node % 4 != 0) return false;
    bool all = true;
    GIWA_UNROLL
    for (int i = 1; i < 4; ++i)
      all = all && positions[i].level == positions[0].level && positions[i].node == positions[0].node + i;
    return all;
  }
  /// An upper bound of count() for any split of at most `leaves` leaves.
  GIWA_HOST_DEVICE static constexpr int64 most(int64 leaves) {
    constexpr int levels = fold_levels::count;
    int64 n = levels + leaves / fold_levels::span(levels - 1) + 1;
    for (int l = 0; l + 1 < levels; ++l) n += fold_levels::span(l + 1) / fold_levels::span(l) - 1;
    return n;
  }
};

/// Whether a node of `level` begins with a partial that comes after another one of its sequence, if the partials of lower levels have
/// become such nodes: then all merges of a level may be done at once. Those of a higher level are nodes here by themselves.
GIWA_HOST_DEVICE constexpr bool begins_node(const split_partials::position& before, const split_partials::position& own,
                                            int level) {
  return before.level >= level || own.level >= level ||
         before.node >> 2 * (level - before.level) != own.node >> 2 * (level - own.level);
}

/// Whether splits of a sequence of `leaves` leaves are a whole node of the tree each.
GIWA_HOST_DEVICE constexpr bool are_whole_nodes(int64 split, int64 leaves) {
  bool one = false;
  for (int l = 0; l < fold_levels::count; ++l) one = one || split == fold_levels::span(l);
  return one && leaves % split == 0;
}

/// The partials of a work tile whose leaves are merged one after the other: the split with its beginning hands on one, and the others each
/// of their leaves. So where one lies is arithmetic.
struct ordered_partials {
  int64 first_split;
  int length, count;  // leaves of a split, or those of the work tile if these are fewer; partials

  /// Of the leaves [begin, begin + leaves) of all, which splits of `of_split` divide, from split `first` on.
  GIWA_HOST_DEVICE constexpr ordered_partials(int64 begin, int leaves, int64 first, int64 of_split)
      : first_split(first),
        length(of_split < leaves ? static_cast<int>(of_split) : leaves),
        count(1 + static_cast<int>(begin + leaves - (first_split + 1) * of_split)) {}
  /// Which split hands on a partial, and its number there.
  struct position {
    int64 split;
    int number;
  };
  GIWA_HOST_DEVICE constexpr position position_of(int partial) const {
    if (partial == 0) return {first_split, 0};
    const int leaf = partial - 1, split = leaf / length;
    return {first_split + 1 + split, leaf - split * length};
  }
};

/// A step of the merge of what all splits handed on, in order: `partials` of them, 1 or 4, are merged in order. The result is
/// the next child of the unfinished node[level] of the fold, and completes `completed` nodes, each the last child of the next.
struct merge_step {
  int partials, level, completed;

  /// The step of the first of `count` positions.
  GIWA_HOST_DEVICE static constexpr merge_step first_of(const split_partials::position* positions, int count) {
    merge_step s{1, positions[0].level, 0};
    int node = positions[0].node;
    if (split_partials::are_children(positions, count)) s.partials = 4, ++s.level, node /= 4;
    GIWA_UNROLL
    for (int l = 0; l + 1 < fold_levels::count; ++l) {
      if (l != s.level + s.completed || node % 4 != 3) continue;
      ++s.completed, node /= 4;
    }
    return s;
  }
};

/// The nodes of a fold. Those of the last level may have another type.
template <class Node, class Last>
struct fold_nodes {
  static constexpr int in_array = fold_levels::count - 1;
  Node node[in_array];
  Last last_node;
  GIWA_HOST_DEVICE constexpr Last& last() { return last_node; }
  GIWA_HOST_DEVICE constexpr const Last& last() const { return last_node; }
};
template <class Node>
struct fold_nodes<Node, Node> {
  static constexpr int in_array = fold_levels::count;
  Node node[in_array];
  GIWA_HOST_DEVICE constexpr Node& last() { return node[in_array - 1]; }
  GIWA_HOST_DEVICE constexpr const Node& last() const { return node[in_array - 1]; }
};

/// The unfinished nodes of a fold: node[l] has the children of level l that came so far of a node of level l + 1, and the
/// last one those of the whole sequence. State has reset(), which makes it the state of no keys, and merge(later). Node and Last
/// may be other types with these two, which become a State: so a kernel chooses what of them is in registers.
template <class State, class Node = State, class Last = Node>
struct leaf_fold : fold_nodes<Node, Last> {
  static constexpr int levels = fold_levels::count;
  using nodes = fold_nodes<Node, Last>;
  using nodes::node, nodes::in_array, nodes::last;
  /// In the place of hand_on(): the caller of push() gets the state.
  struct returns_state {};

  GIWA_HOST_DEVICE constexpr void reset() {
    GIWA_UNROLL
    for (int l = 0; l < in_array; ++l) node[l].reset();
    if constexpr (in_array < levels) last().reset();
  }

  /// Adds the state x of node n of a level. A node whose parent begins before the split is handed on: then x becomes its
  /// state, and the result is true.
  GIWA_HOST_DEVICE constexpr bool push(int level, int n, State& x, int begin) {
    return push(level, n, x, begin, returns_state{});
  }
  /// The same, with a call of hand_on(x) where the state is handed on. Each level has its own, so that the states of several levels
  /// are not one variable, which in the kernel for latent rows would spill.
  template <class F>
  GIWA_HOST_DEVICE constexpr bool push(int level, int n, State& x, int begin, const F& hand_on) {
    GIWA_UNROLL
    for (int l = 0; l < levels; ++l) {
      if (l < level) continue;
      if (l + 1 == levels) {
        if (begin == 0) last().merge(x);
        if constexpr (!stdlib::same_as<F, returns_state>)
          if (begin != 0) hand_on(x);
        return begin != 0;
      }
      const int parent_span = fold_levels::span(l + 1), children = parent_span / fold_levels::span(l);
      const int parent = n / children;
      if (parent * parent_span < begin) {
        if constexpr (!stdlib::same_as<F, returns_state>) hand_on(x);
        return true;
      }
      node[l].merge(x);
      if (n % children != children - 1) return false;
      x = node[l];
      node[l].reset();
      n = parent;
    }
    return false;
  }

  /// Adds the result of a step of the merge of all splits.
  GIWA_HOST_DEVICE constexpr void add(const merge_step& step, State& x) {
    int level = step.level, left = step.completed;
    GIWA_UNROLL
    for (int l = 0; l < levels; ++l) {
      if (l != level) continue;
      if (l == in_array) return last().merge(x);
      node[l].merge(x);
      if (left == 0) return;
      x = node[l];
      node[l].reset();
      ++level, --left;
    }
  }

  /// Returns the state of unfinished node l of a split at its end.
  GIWA_HOST_DEVICE constexpr State unfinished(int l) const {
    State x = node[0];
    GIWA_UNROLL
    for (int i = 1; i < in_array; ++i)
      if (i == l) x = node[i];
    if constexpr (in_array < levels)
      if (l == in_array) x = last();
    return x;
  }

  /// Returns the result, after the last leaf of the sequence.
  GIWA_HOST_DEVICE constexpr const Last& finish() {
    GIWA_UNROLL
    for (int l = 1; l < in_array; ++l) node[l].merge(node[l - 1]);
    if constexpr (in_array < levels) last().merge(node[in_array - 1]);
    return last();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
