// SPDX-License-Identifier: MIT
// Partials of few sequences, by levels.
#ifndef GIWA_ATTENTION_SUMS_SEQUENCE_PARTIALS_CUH
#define GIWA_ATTENTION_SUMS_SEQUENCE_PARTIALS_CUH

#include <giwa/attention/sums/few_rows_partials.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The work tile of a sequence that has one, for merge_sequences_op. Its partials are the operands of the merges that are left. Those of
/// a level have at most 4 operands each, and all of them are done at once.
template <class Call>
class sequence_partials : public few_rows_partials<Call> {
  using base = few_rows_partials<Call>;
  using base::begin_, base::first_split_, base::last_split_, base::p_, base::split_length_, base::work_;

 public:
  using params = typename base::params;
  static constexpr int max_threads = 256, levels = fold_levels::count;
  static constexpr int most = 2 * max_threads, words = most / 32,
                       floats = 16384;  // operands; numbers of O in shared memory
  struct shared_storage {
    const float* slot[most];
    split_partials::position position[most];
    uint32 begins[levels][words];  // in bit k: a node of the level begins with operand k
    int before[levels][words];     // nodes of the level that begin in earlier words
    int nodes[levels];
    unsigned short operand[levels][most];    // with which a node begins; its place is that of the node's O
    unsigned short child[levels][most + 1];  // the first of a node among those of the level before
    alignas(8) float ml[2][most][2];
    block_partials<int> sums;
    union {
      alignas(16) float o[floats];
      typename base::warp_partials list;
    };
  };

  GIWA_DEVICE sequence_partials(const params& p, shared_storage& s) : base(p, s.list, 0), s_(s) {}

  /// Finds the work tile of sequence b: the call's splits are found early, or all sequences are alike. False if it is not divided.
  template <class Block>
  GIWA_DEVICE bool find(const Block& block, int b) {
    const split_shape& shape = p_.shape;
    int count = shape.leaves.count();
    work_.sequence = shape.sequence, work_.leaves = shape.leaves;
    split_length_ = shape.length, begin_ = int64{b} * count;
    if (shape.total == 0) {
      const early_lengths found(block, p_.call, shape, p_.leaf_keys);
      work_.sequence = found.sequence(block, p_.call, b);
      count = block.shuffle(found.leaves, b);
      split_length_ = found.length, begin_ = block.shuffle(found.end, b) - count;
      work_.leaves = {0, count, 1};
    } else {
      go_to_sequence(work_.sequence, p_.call, b);
    }
    first_split_ = quotient(begin_), last_split_ = quotient(begin_ + count - 1);
    if (split_length_ > shape.most_leaves || first_split_ == last_split_) return false;
    work_.head = work_.row_tile = 0;
    this->end_of_find();
    return true;
  }

  /// Lists the operands, and finds the nodes of each level. Returns their number, or 0 if they are too many. All threads of the block call it.
  template <class Block>
  GIWA_DEVICE int list(const Block& block) {
    const int splits = static_cast<int>(last_split_ - first_split_) + 1, i = block.rank();
    if (splits > max_threads) return 0;
    const auto add = [&](int k, int part, const split_partials::position& at) {
      s_.slot[k] = p_.slot_of(first_split_ + i, 0, i == 0, part);
      s_.position[k] = at;
    };
    level_ = level_of_splits();
    int count = splits;
    if (level_ >= 0) {
      if (i < splits) add(i, 0, {level_, i});
      block.sync();
    } else {
      const split_partials own = this->handed_on(i < splits ? first_split_ + i : last_split_);
      const int parts = i < splits ? own.count() : 0;
      const scan_result<int> sum = scan_block(block, parts, s_.sums);
      count = sum.total;
      if (count > most) return 0;
      for (int part = 0; part < parts; ++part) add(sum.inclusive - parts + part, part, own.position_of(part));
      block.sync();
      find_nodes(block, count);
    }
    return count;
  }

  /// Starts the copies of a row of all operands: of `columns` columns from `first` on, by columns / 4 threads each.
  template <class Block>
  GIWA_DEVICE void copy(const Block& block, int count, int row, int first, int columns) const {
    const partial_slot slot{p_.shape.rows, p_.columns};
    const int lanes = columns / merged_columns, column = merged_columns * (block.rank() & (lanes - 1));
    GIWA_NO_UNROLL
    for (int k = block.rank(); k < count; k += max_threads)
      arch::copy_async<8>(arch::shared_address(s_.ml[0][k]), s_.slot[k] + slot.sums(row));
#pragma unroll 4
    for (int k = block.rank() / lanes; k < count; k += max_threads / lanes)
      arch::copy_async<16>(arch::shared_address(s_.o + k * columns + column),
                           s_.slot[k] + (slot.output(row) + first + column));
    arch::copy_async_commit();
  }

  /// Waits for the copies, and merges. The first columns / 4 threads have the sum.
  template <class Block>
  GIWA_DEVICE merged_sums sum(const Block& block, int count, int columns) const {
    const int lanes = columns / merged_columns, lane = block.rank() & (lanes - 1);
    arch::copy_async_wait<0>();
    block.sync();
    int of_level = 0, before = count;  // which m and l
    const auto at = [&](int l, int node) {
      const float4 o = *reinterpret_cast<const float4*>(s_.o + operand(l, node) * columns + merged_columns * lane);
      const float2 ml = *reinterpret_cast<const float2*>(s_.ml[of_level][node]);
      return merged_sums{{ml.x}, {ml.y}, {{o.x, o.y, o.z, o.w}}};
    };
    GIWA_NO_UNROLL
    for (int l = 1; l < levels; ++l) {
      const int all_nodes = nodes(l, count);
      if (all_nodes == before) continue;
      GIWA_NO_UNROLL
      for (int node = block.rank() / lanes; node < all_nodes; node += max_threads / lanes) {
        int first = 4 * node, children = before - first;
        if (level_ < 0) first = s_.child[l][node], children = s_.child[l][node + 1] - first;
        merged_sums x[4];
        GIWA_UNROLL
        for (int i = 0; i < 4; ++i) {
          x[i].reset();  // no keys: so there is no branch between the merges
          if (i < children) x[i] = at(l - 1, first + i);
        }
        GIWA_UNROLL
        for (int i = 1; i < 4; ++i) x[0].merge(x[i]);
        const float(&o)[merged_columns] = x[0].o.value;
        *reinterpret_cast<float4*>(s_.o + operand(l, node) * columns + merged_columns * lane) = {o[0], o[1], o[2],
                                                                                                 o[3]};
        if (lane == 0) *reinterpret_cast<float2*>(s_.ml[of_level ^ 1][node]) = {x[0].m[0], x[0].l[0]};
      }
      of_level ^= 1, before = all_nodes;
      block.sync();
    }
    merged_sums all = at(levels - 1, 0);
    if (block.rank() < lanes)
#pragma unroll 4
      for (int node = 1; node < before; ++node) all.merge(at(levels - 1, node));
    return all;
  }

  /// The same of any number of operands, by one warp.
  template <class Block>
  GIWA_DEVICE merged_sums sum_by_warp(const Block& block, int first) {
    return base::sum(block, first);
  }

 private:
  /// Finds the nodes of each level of operands that are listed.
  template <class Block>
  GIWA_DEVICE void find_nodes(const Block& block, int count) const {
    const int rounds = ceil_div(count, max_threads);
    GIWA_NO_UNROLL
    for (int round = 0; round < rounds; ++round) {
      const int k = round * max_threads + block.rank();
      split_partials::position own{}, before{levels, 0};
      if (k < count) own = s_.position[k];
      if (k < count && k > 0) before = s_.position[k - 1];
      GIWA_UNROLL
      for (int l = 1; l < levels; ++l) {
        const uint32 word = block.ballot(k < count && begins_node(before, own, l));
        if (block.lane() == 0) s_.begins[l][k / 32] = word;
      }
    }
    block.sync();
    if (const int l = block.warp(); l > 0 && l < levels) {
      const int i = block.lane(), ones = i < rounds * (max_threads / 32) ? __popc(s_.begins[l][i]) : 0;
      const int end = scan_warp(block, ones);
      if (i < words) s_.before[l][i] = end - ones;
      if (i == 31) s_.nodes[l] = end;
    }
    block.sync();
    GIWA_NO_UNROLL
    for (int k = block.rank(); k < count; k += max_threads) {
      int rank = k;
      s_.operand[0][k] = static_cast<unsigned short>(k);
      GIWA_UNROLL
      for (int l = 1; l < levels; ++l) {
        const uint32 word = s_.begins[l][k / 32], bit = 1u << k % 32;
        if ((word & bit) == 0) break;
        const int node = s_.before[l][k / 32] + __popc(word & (bit - 1));
        s_.operand[l][node] = static_cast<unsigned short>(k);
        s_.child[l][node] = static_cast<unsigned short>(rank);
        rank = node;
      }
    }
    if (block.rank() == 0)
      for (int l = 1; l < levels; ++l)
        s_.child[l][s_.nodes[l]] = static_cast<unsigned short>(l > 1 ? s_.nodes[l - 1] : count);
    block.sync();
  }

  /// The nodes of a level, the operand with which one begins, and the first of its children: of splits that are one node each by arithmetic.
  ///@{
  GIWA_DEVICE int shift(int l) const { return l > level_ ? 2 * (l - level_) : 0; }
  GIWA_DEVICE int nodes(int l, int count) const {
    return level_ < 0 ? s_.nodes[l] : (count + (1 << shift(l)) - 1) >> shift(l);
  }
  GIWA_DEVICE int operand(int l, int node) const { return level_ < 0 ? s_.operand[l][node] : node << shift(l); }
  ///@}

  /// begin / split_length_, of numbers that find() has.
  GIWA_DEVICE int64 quotient(int64 leaf) const { return quotient_of_leaves(leaf, static_cast<int>(split_length_)); }
  /// The level of the tree of which each split is one node, or -1. The last split may have fewer leaves, if it hands on one partial.
  GIWA_DEVICE int level_of_splits() const {
    int level = -1;
    GIWA_UNROLL
    for (int l = 0; l < levels; ++l)
      if (split_length_ == fold_levels::span(l)) level = l;
    if (level < 0 || work_.leaves.first != 0 || (begin_ & (split_length_ - 1)) != 0) return -1;
    const int left = work_.leaves.count() & (fold_levels::span(level) - 1);
    return left == 0 || left < 4 || (left & ~12) == 0 || (left & ~48) == 0 ? level : -1;
  }

  shared_storage& s_;
  int level_ = -1;  // level_of_splits()
};

/// The second launch for few sequences with one tile of rows each: a block for each sequence, row and share of the columns.
template <class Call>
struct merge_sequences_op {
  using tile_type = sequence_partials<Call>;
  using params = typename tile_type::params;
  using shared_storage = typename tile_type::shared_storage;
  static constexpr int max_threads = tile_type::max_threads, min_blocks = 1;

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    using output = stdlib::remove_cvref_t<decltype(*p.call.views.o.data())>;
    const auto block = with_threads<max_threads>(plain_block);
    arch::launch_dependents();  // the next call, whose blocks wait for this launch
    const int sequence = static_cast<int>(block.block_index()[0]), row = static_cast<int>(block.block_index()[1]);
    const int columns = p.columns / static_cast<int>(block.block_extents()[2]),
              begin = static_cast<int>(block.block_index()[2]) * columns, end = begin + columns;
    tile_type tile(p, s);
    if (!tile.find(block, sequence)) return arch::wait_for_previous_kernel();
    const merged_row at = tile.begin(row);
    const cached_row_end<output> to(p.call, tile.sequence(), at.packed.head(row), at.packed.query(row));
    const int count = tile.list(block);
    arch::wait_for_previous_kernel();
    const auto store = [&](int lane, int first, const merged_sums& all) {
      const finished_softmax<float> ended = to.finish(all.m[0], all.l[0]);
      to.store(first + merged_columns * lane, all.o.value, ended);
      return ended.lse;
    };
    float lse = 0;
    if (count == 0) {
      if (block.warp() > 0) return;
      for (int first = begin; first < end; first += 32 * merged_columns) {
        const merged_sums all = tile.sum_by_warp(block, first);
        if (first + merged_columns * block.lane() < end) lse = store(block.lane(), first, all);
      }
    } else {
      int at_once = columns;
      while (count * at_once > tile_type::floats) at_once /= 2;
      for (int first = begin; first < end; first += at_once) {
        if (first > begin) block.sync();  // the columns before are merged
        tile.copy(block, count, row, first, at_once);
        const merged_sums all = tile.sum(block, count, at_once);
        if (merged_columns * block.rank() < at_once) lse = store(block.rank(), first, all);
      }
    }
    // The prior's lse may be the one that is written: all threads have met since they read it.
    if (to.lse != nullptr && begin == 0 && block.rank() == 0) *to.lse = lse;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
