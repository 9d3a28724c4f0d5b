// SPDX-License-Identifier: MIT
// How a block finds its split from lengths, which the previous kernel may still write.
#ifndef GIWA_ATTENTION_WORK_FIND_SPLIT_HPP
#define GIWA_ATTENTION_WORK_FIND_SPLIT_HPP

#include <giwa/arch/early_read.hpp>
#include <giwa/attention/work/splits.hpp>
#include <giwa/grid/reduce.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Sequences among which find_split_early() finds a split, at most; lengths that a lane reads at once where they are more than 32.
inline constexpr int most_early_sequences = 256, early_reads = 4;
static_assert(most_early_sequences % (32 * early_reads) == 0);

/// Shared memory of find_split_early().
struct early_split_search {
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

/// Makes `s`, one of a call whose sequences are alike, sequence b.
template <class Params>
GIWA_HOST_DEVICE void go_to_sequence(cached_sequence& s, const Params& p, int b) {
  if constexpr (Params::selects) {
    s = p.at(b);
  } else {
    s.batch = s.q_batch = b;
    if (p.views.is_paged()) s.first_entry = b * p.views.cache.pages.stride;
  }
}

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
    go_to_sequence(position.sequence, p, static_cast<int>(b));
    if (block.rank() == 0) s.found = position;
  } else if (p.views.sequence_count() <= 32) {
    find_split_by_warp(block, p, shape, position, leaf_keys, tile_rows, s);
  } else {
    find_split_by_block(block, p, shape, position, leaf_keys, tile_rows, s);
  }
  block.sync();
  return s.found;
}

/// Whether the mask leaves out no leaf, or none if the diagonal is that of the last key.
///@{
template <class Params>
inline constexpr bool keeps_all_keys = mask_traits<stdlib::remove_cvref_t<decltype(Params::mask)>>::keeps_all;
template <class Params>
inline constexpr bool has_early_splits =
    keeps_all_keys<Params> || mask_traits<stdlib::remove_cvref_t<decltype(Params::mask)>>::is_causal;
///@}

/// Whether find_split_early() may find the splits of a launch: of at most `most` sequences, in each of which all rows are one tile and
/// the mask leaves out no leaf. Offsets that are not written yet could lead outside the page table, and a custom mask may read
/// what is not written yet.
template <class Params>
GIWA_HOST_DEVICE constexpr bool may_find_early(const Params& p, const split_shape& shape, int leaf_keys, int tile_rows,
                                               int most = 32) {
  const auto& a = p.views;
  const int64 leaves = saturated_product(ceil_div(p.capacity, leaf_keys) + 1,
                                         round_up(a.sequence_count(), int64{32}) * shape.heads_in_column);
  return has_early_splits<Params> && (keeps_all_keys<Params> || p.bottom_right) && !a.is_packed() &&
         a.cache.pages.offsets == nullptr && a.sequence_count() <= most && leaves >> 30 == 0 &&
         a.q.extent(1) <= tile_rows / p.heads_per_kv && shape.slots > 0;
}

/// What find_split_early() finds in each lane, where there are at most 32 sequences: the keys and leaves of its sequence.
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
/// has_same_lengths() after the wait. `lengths`: shared memory for `Most` of them. One warp calls it. The instructions run
/// once and come from memory, so few are faster.
template <int Most = 32, class Block, class Params>
GIWA_HOST_DEVICE split_position find_split_early(const Block& block, const Params& p, const split_shape& shape,
                                                 int split, int leaf_keys, split_search& s, int* lengths) {
  if constexpr (!has_early_splits<Params>) return {};
  const auto& a = p.views;
  const int lane = block.lane(), queries = static_cast<int>(a.q.extent(1)),
            sequences = static_cast<int>(a.sequence_count());
  const auto leaves_of_keys = [&](int n) { return n > 0 ? ceil_div(n, leaf_keys) : 1; };
  const auto keys_of = [&](int n) { return n < 0 ? 0 : n < p.capacity ? n : p.capacity; };
  int each = 1, keys = p.capacity, leaves = 0;
  bool takes_whole = false;
  if (Most <= 32 || sequences <= 32) {
    if (lane < sequences) {
      if (a.cache.lengths != nullptr) {
        keys = arch::early_read(a.cache.lengths + lane);
        lengths[lane] = keys;
        keys = keys_of(keys);
      }
      leaves = leaves_of_keys(keys);
    }
  } else {
    each = ceil_div(sequences, 32);
    GIWA_NO_UNROLL
    for (int first = lane; first < sequences; first += 32 * early_reads) {
      int read[early_reads];
      GIWA_UNROLL
      for (int i = 0; i < early_reads; ++i) {
        const int b = first + 32 * i;
        read[i] = b < sequences && a.cache.lengths != nullptr ? arch::early_read(a.cache.lengths + b) : p.capacity;
      }
      GIWA_UNROLL
      for (int i = 0; i < early_reads; ++i) lengths[first + 32 * i] = read[i];
    }
    block.sync_warp();
    if (shape.early_tiles > 0) {
      int longest = 0;
      GIWA_NO_UNROLL
      for (int b = lane; b < sequences; b += 32) {
        const int n = leaves_of_keys(keys_of(lengths[b]));
        leaves += n, longest = longest < n ? n : longest;
      }
      longest = reduce_warp(block, longest, [](int x, int y) { return x < y ? y : x; });
      takes_whole = shape.takes_whole_tiles(longest, reduce_warp(block, leaves));
    }
    leaves = 0;
    const int begin = takes_whole ? split * shape.early_tiles : lane * each,
              count = takes_whole ? shape.early_tiles : each;
    GIWA_NO_UNROLL
    for (int b = begin; b < begin + count && b < sequences; ++b) leaves += leaves_of_keys(keys_of(lengths[b]));
  }
  leaves *= shape.heads_in_column;
  int number = split, length = leaves, total = leaves;
  if (takes_whole) {  // as the only split
    number = 0;
    const int b = split * shape.early_tiles;
    if (lane == 0) s.early.batch = b, s.early.first = 0, s.early.keys = b < sequences ? keys_of(lengths[b]) : 0;
  } else {
    const int end = scan_warp(block, leaves);
    total = block.shuffle(end, 31), length = shape.length_of(total);
    int first = split * length - (end - leaves);
    if (first >= 0 && first < leaves) {
      int b = lane * each;
      if (Most > 32 && sequences > 32)
        for (;; ++b) {
          keys = keys_of(lengths[b]);
          const int of_sequence = leaves_of_keys(keys) * shape.heads_in_column;
          if (first < of_sequence) break;
          first -= of_sequence;
        }
      s.early.batch = b, s.early.first = first, s.early.keys = keys;
    }
  }
  block.sync_warp();
  const int b = s.early.batch, n = s.early.keys;
  return {{b, 0, queries, n, p.bottom_right ? n - queries : p.diagonal_offset, b,
           a.is_paged() ? b * a.cache.pages.stride : 0},
          {0, leaves_of_keys(n), 1},
          s.early.first,
          number,
          length,
          total};
}

/// Whether find_split_early() has read the lengths that are in memory now. All lanes of a warp call it.
template <int Most = 32, class Block, class Params>
GIWA_HOST_DEVICE bool has_same_lengths(const Block& block, const Params& p, const int* lengths) {
  if constexpr (!has_early_splits<Params>) return true;
  const int* const now = p.views.cache.lengths;
  const int sequences = now != nullptr ? static_cast<int>(p.views.sequence_count()) : 0, lane = block.lane();
  int changed = lane < sequences ? arch::early_read(now + lane) ^ lengths[lane] : 0;  // bits
  if (Most > 32 && sequences > 32) {
    GIWA_NO_UNROLL
    for (int first = lane + 32; first < sequences; first += 32 * early_reads) {
      int read[early_reads];
      GIWA_UNROLL
      for (int i = 0; i < early_reads; ++i)
        if (first + 32 * i < sequences) read[i] = arch::early_read(now + first + 32 * i);
      GIWA_UNROLL
      for (int i = 0; i < early_reads; ++i)
        if (first + 32 * i < sequences) changed |= read[i] ^ lengths[first + 32 * i];
    }
  }
  return block.all(changed == 0);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
