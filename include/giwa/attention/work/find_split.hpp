// SPDX-License-Identifier: MIT
// How a block finds its split from lengths, which the previous kernel may still write.
#ifndef GIWA_ATTENTION_WORK_FIND_SPLIT_HPP
#define GIWA_ATTENTION_WORK_FIND_SPLIT_HPP

#include <giwa/arch/early_read.hpp>
#include <giwa/attention/work/splits.hpp>
#include <giwa/grid/reduce.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Shared memory of find_split_early().
struct early_split_search {
  int lengths[32];         // of each sequence, as they were read
  int batch, first, keys;  // of the split: its sequence, its first leaf there; the keys of that
};
/// Shared memory of find_split().
struct split_search {
  union {
    block_partials<int64> sums;
    early_split_search early;
  };
  split_position found;
};

/// Finds a split among at most 32 sequences. One warp looks them up, and the others leave it the issue slots: a call of one
/// token after append_to_cache() takes 0.6 to 1.2 us less, 22.5 instead of 23.7 for 8 sequences of 1024 keys (H200,
/// 2026-11-24).
template <class Block, class Params>
GIWA_HOST_DEVICE void find_split_by_warp(const Block& block, const Params& p, const split_shape& shape,
                                         split_position position, int leaf_keys, int tile_rows, split_search& s) {
  if (block.warp() == 0) {
    int64 leaves = 0;  // of this lane's sequence
    if (block.lane() < p.views.sequence_count()) {
      position.sequence = p.at(block.lane());
      position.leaves_of_sequence = leaves_of(p, position.sequence, leaf_keys, tile_rows);
      leaves =
          int64{position.leaves_of_sequence.count()} * position.leaves_of_sequence.row_tiles * shape.heads_in_column;
    }
    const int64 end = scan_warp(block, leaves);
    position.total = block.shuffle(end, 31);
    position.length = shape.length_of(position.total);
    position.before = position.begin() - (end - leaves);
    const bool is_in = position.before >= 0 && position.before < leaves;
    if (is_in || (position.leaves() <= 0 && block.lane() == 0)) s.found = position;
  }
}

/// Finds a split among any number of sequences, which all threads look up.
template <class Block, class Params>
GIWA_HOST_DEVICE void find_split_by_block(const Block& block, const Params& p, const split_shape& shape,
                                          split_position position, int leaf_keys, int tile_rows, split_search& s) {
  const int64 sequences = p.views.sequence_count();
  int64 leaves = 0;  // of this thread's sequence
  scan_result<int64> sum{};
  const auto add = [&](int64 first) {
    const int64 b = first + block.rank();
    leaves = 0;
    if (b < sequences) {
      position.sequence = p.at(static_cast<int>(b));
      position.leaves_of_sequence = leaves_of(p, position.sequence, leaf_keys, tile_rows);
      leaves =
          int64{position.leaves_of_sequence.count()} * position.leaves_of_sequence.row_tiles * shape.heads_in_column;
    }
    sum = scan_block(block, leaves, s.sums);
  };
  for (int64 first = 0; first < sequences; first += block.size()) {
    add(first);
    position.total += sum.total;
  }
  position.length = shape.length_of(position.total);
  if (position.leaves() <= 0 && block.rank() == 0) s.found = position;
  int64 earlier = 0;
  for (int64 first = 0; first < sequences; first += block.size()) {
    if (sequences > block.size()) add(first);  // else all are known
    position.before = position.begin() - earlier - (sum.inclusive - leaves);
    if (position.before >= 0 && position.before < leaves) s.found = position;
    earlier += sum.total;
  }
}

/// Finds a split, if sequences differ, from their lengths in memory. All threads of the block call it and get its position, which
/// is in shared memory.
template <class Block, class Params>
GIWA_HOST_DEVICE const split_position& find_split(const Block& block, const Params& p, const split_shape& shape,
                                                  int64 split, int leaf_keys, int tile_rows, split_search& s) {
  split_position position{shape.sequence, shape.leaves, 0, split, shape.length, shape.total};
  if (shape.total > 0) {
    const int64 b = position.begin() / shape.leaves_in_column;
    position.before = position.begin() - b * shape.leaves_in_column.divisor();
    position.sequence.batch = position.sequence.q_batch = static_cast<int>(b);
    if (p.views.is_paged()) position.sequence.first_entry = b * p.views.cache.pages.stride;
    if (block.rank() == 0) s.found = position;
  } else if (p.views.sequence_count() <= 32) {
    find_split_by_warp(block, p, shape, position, leaf_keys, tile_rows, s);
  } else {
    find_split_by_block(block, p, shape, position, leaf_keys, tile_rows, s);
  }
  block.sync();
  return s.found;
}

/// Whether find_split_early() may find the splits of a launch: at most 32 sequences, in each of which all rows are one tile and
/// the mask leaves out no leaf. Offsets that are not written yet could lead outside the page table, and a custom mask may read
/// what is not written yet.
template <class Params>
GIWA_HOST_DEVICE constexpr bool may_find_early(const Params& p, const split_shape& shape, int leaf_keys,
                                               int tile_rows) {
  using mask = mask_traits<stdlib::remove_cvref_t<decltype(p.mask)>>;
  const auto& a = p.views;
  const int64 leaves = saturated_product(ceil_div(p.capacity, leaf_keys) + 1, 32 * int64{shape.heads_in_column});
  return (mask::keeps_all || (mask::is_causal && p.bottom_right)) && !a.is_packed() &&
         a.cache.pages.offsets == nullptr && a.sequence_count() <= 32 && leaves >> 30 == 0 &&
         a.q.extent(1) <= tile_rows / p.heads_per_kv && shape.slots > 0;
}

/// What find_split_early() finds in each lane: the keys and leaves of its sequence, of which there are at most 32.
struct early_lengths {
  int keys = 0, leaves = 0, end = 0;  // end: leaves of all up to this one
  int total = 0, length = 0;          // of all, and of a split

  template <class Block, class Params>
  GIWA_HOST_DEVICE early_lengths(const Block& block, const Params& p, const split_shape& shape, int leaf_keys) {
    const auto& a = p.views;
    const bool exists = block.lane() < static_cast<int>(a.sequence_count());
    keys = p.capacity;
    if (exists && a.cache.lengths != nullptr) {
      const int n = arch::early_read(a.cache.lengths + block.lane());
      keys = n < 0 ? 0 : n < keys ? n : keys;
    }
    leaves = exists ? (keys > 0 ? ceil_div(keys, leaf_keys) : 1) * shape.heads_in_column : 0;
    end = scan_warp(block, leaves), total = block.shuffle(end, 31);
    length = shape.length_of(total);
  }
  /// Sequence b. All lanes call it.
  template <class Block, class Params>
  GIWA_HOST_DEVICE cached_sequence sequence(const Block& block, const Params& p, int b) const {
    const int n = block.shuffle(keys, b), queries = static_cast<int>(p.views.q.extent(1));
    return {b,
            0,
            queries,
            n,
            p.bottom_right ? n - queries : p.diagonal_offset,
            b,
            p.views.is_paged() ? b * p.views.cache.pages.stride : 0};
  }
};

/// Finds a split while the previous kernel may still write the lengths: what follows from it must be undone unless
/// has_same_lengths() after the wait. One warp calls it. The instructions run once and come from memory, so few are faster.
template <class Block, class Params>
GIWA_HOST_DEVICE split_position find_split_early(const Block& block, const Params& p, const split_shape& shape,
                                                 int split, int leaf_keys, split_search& s) {
  const auto& a = p.views;
  const int lane = block.lane(), queries = static_cast<int>(a.q.extent(1));
  const bool exists = lane < static_cast<int>(a.sequence_count());
  int keys = p.capacity;
  if (exists && a.cache.lengths != nullptr) {
    const int length = arch::early_read(a.cache.lengths + lane);
    s.early.lengths[lane] = length;
    keys = length < 0 ? 0 : length < keys ? length : keys;
  }
  const auto leaves_of_keys = [&](int n) { return n > 0 ? ceil_div(n, leaf_keys) : 1; };
  const int leaves = exists ? leaves_of_keys(keys) * shape.heads_in_column : 0;
  const int end = scan_warp(block, leaves), total = block.shuffle(end, 31);
  const int length = shape.length_of(total), begin = split * length, first = begin - (end - leaves);
  if (first >= 0 && first < leaves) s.early.batch = lane, s.early.first = first, s.early.keys = keys;
  block.sync_warp();
  const int b = s.early.batch, n = s.early.keys;
  return {{b, 0, queries, n, p.bottom_right ? n - queries : p.diagonal_offset, b,
           a.is_paged() ? b * a.cache.pages.stride : 0},
          {0, leaves_of_keys(n), 1},
          s.early.first,
          split,
          length,
          total};
}

/// Whether find_split_early() has read the lengths that are in memory now. All lanes of a warp call it.
template <class Block, class Params>
GIWA_HOST_DEVICE bool has_same_lengths(const Block& block, const Params& p, const split_search& s) {
  const int b = block.lane();
  const bool reads = p.views.cache.lengths != nullptr && b < static_cast<int>(p.views.sequence_count());
  return block.all(!reads || arch::early_read(p.views.cache.lengths + b) == s.early.lengths[b]);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
