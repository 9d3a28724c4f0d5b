// SPDX-License-Identifier: MIT
// Splits: every leaf is computed once, in order, and what splits hand on fits into the workspace.
#include <giwa/attention/work/cached_workspace.hpp>
#include <giwa/attention/work/find_split.hpp>
#include <giwa/grid/host_executor.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace giwa::detail;
using giwa::causal;
using giwa::fp16;
using giwa::full;
using giwa::int64;
using giwa::sliding_window;

namespace {

/// A call without tensors: only sizes, lengths and offsets are read.
struct call_sizes {
  int64 sequences = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1;
  std::vector<int> lengths{};  // empty: every sequence has `keys`
  std::vector<int> offsets{};  // of packed queries, whose rows are `queries` together; empty: not packed

  template <class Mask>
  auto params(const Mask& mask) const {
    const bool packed = !offsets.empty();
    cached_views<fp16, fp16, fp16> a{};
    a.q = {nullptr, {packed ? 1 : sequences, queries, heads, 128}};
    a.cache.k = a.cache.v = {nullptr, {sequences, keys, kv_heads, 128}};
    a.cache.lengths = lengths.empty() ? nullptr : lengths.data();
    if (packed) a.packed = {offsets.data(), sequences, 1};
    return cached_params_of(a, mask, giwa::plain_score{}, giwa::cached_options{});
  }
};

template <class Params>
split_work work_of_call(const Params& p, int leaf_keys, int tile_rows) {
  const bool exact = !p.is_ragged() && !mask_bounds_leaves<std::remove_cvref_t<decltype(p.mask)>>;
  return work_of(p.views.problem(), {leaf_keys, tile_rows, 128}, exact);
}

/// Runs that find_split() has to find, by adding up all sequences.
template <class Params>
class plain_search {
 public:
  plain_search(const Params& p, const split_shape& shape, int leaf_keys, int tile_rows) {
    for (int b = 0; b < p.views.sequence_count(); ++b) {
      first_.push_back(total);
      sequences_.push_back(p.at(b));
      const sequence_leaves l = leaves_of(p, p.at(b), leaf_keys, tile_rows);
      leaves_.push_back(l);
      total += int64{l.count()} * l.row_tiles * shape.heads_in_column;
    }
    length = shape.length_of(total);
  }
  split_position position(int64 split) const {
    split_position position{
        .sequence = {}, .leaves_of_sequence = {}, .before = 0, .number = split, .length = length, .total = total};
    if (position.leaves() <= 0) return position;
    // The last that begins there: those before it have no leaves.
    const auto after = std::upper_bound(first_.begin(), first_.end(), position.begin());
    const auto b = after - first_.begin() - 1;
    position.sequence = sequences_[static_cast<std::size_t>(b)];
    position.leaves_of_sequence = leaves_[static_cast<std::size_t>(b)];
    position.before = position.begin() - after[-1];
    return position;
  }
  /// Whether find_split_early() takes whole work tiles, and those of a split, as the only split.
  ///@{
  bool takes_whole_tiles(const split_shape& shape) const {
    int most = 0;
    for (const sequence_leaves& l : leaves_) most = std::max(most, l.count());
    return shape.takes_whole_tiles(most, static_cast<int>(total));
  }
  split_position whole_tiles(const split_shape& shape, int64 split) const {
    split_position position{};
    const auto first = static_cast<std::size_t>(split * shape.early_tiles),
               end = std::min(leaves_.size(), first + static_cast<std::size_t>(shape.early_tiles));
    for (std::size_t b = first; b < end; ++b) position.total += leaves_[b].count();
    position.length = position.total;
    if (first < end) position.sequence = sequences_[first], position.leaves_of_sequence = leaves_[first];
    return position;
  }
  ///@}
  int64 total = 0, length = 0;

 private:
  std::vector<int64> first_;
  std::vector<cached_sequence> sequences_;
  std::vector<sequence_leaves> leaves_;
};

/// What is wrong with the work tiles of all splits.
struct law {
  int64 out_of_order = 0, missed = 0, divided = 0, empty = 0, too_many_slots = 0, too_many_begun = 0, too_long = 0,
        tiles = 0;
  void holds() const {
    CHECK(out_of_order == 0);
    CHECK(missed == 0);
    CHECK(divided == 0);
    CHECK(empty == 0);
    CHECK(too_many_slots == 0);
    CHECK(too_many_begun == 0);
    CHECK(too_long == 0);
  }
};

/// Walks all splits of a launch. The leaves of each (sequence, head, tile of rows) must come in order, each once.
template <class Params>
void check_splits(law& broken, const Params& p, const split_shape& of_host, int leaf_keys, int tile_rows) {
  const int kv_heads = static_cast<int>(p.views.cache.k.extent(2));
  const plain_search search(p, of_host, leaf_keys, tile_rows);
  split_shape shape = of_host;
  shape.slots = search.position(0).slots(of_host);
  std::vector<int64> first_tile{0};
  std::vector<int> next, end;  // of each work tile
  for (int b = 0; b < p.views.sequence_count(); ++b) {
    const sequence_leaves l = leaves_of(p, p.at(b), leaf_keys, tile_rows);
    first_tile.push_back(first_tile.back() + kv_heads * l.row_tiles);
    next.insert(next.end(), static_cast<std::size_t>(kv_heads * l.row_tiles), l.first);
    end.insert(end.end(), static_cast<std::size_t>(kv_heads * l.row_tiles), l.end);
  }
  for (int64 split = 0; split < shape.splits; ++split)
    for (int column = 0; column < shape.columns; ++column) {
      split_walk walk(p, shape, column, leaf_keys, tile_rows);
      walk.enter(shape, search.position(split));
      int64 leaves = 0;
      int slots_before = 0, slots_begun = 0;
      while (walk.next()) {
        const few_rows_work_tile& work = walk.work();
        ++broken.tiles;
        leaves += work.end - work.begin;
        broken.empty += work.begin < work.end && work.row_tile < work.leaves.row_tiles && work.head < kv_heads ? 0 : 1;
        const auto tile = static_cast<std::size_t>(first_tile[static_cast<std::size_t>(work.sequence.batch)] +
                                                   work.head * work.leaves.row_tiles + work.row_tile);
        if (tile >= next.size() || next[tile] != work.begin || work.end > end[tile])
          ++broken.out_of_order;
        else
          next[tile] = work.end;
        if (work.has_beginning() && work.has_end()) continue;
        (work.has_beginning() ? slots_begun : slots_before) += split_partials(work.fold_begin(), work.end).count();
      }
      if (shape.slots == 0)
        broken.divided += slots_begun + slots_before;
      else
        broken.too_long += leaves <= search.length ? 0 : 1;
      broken.too_many_slots += slots_before <= shape.slots ? 0 : 1;
      broken.too_many_begun += slots_begun <= fold_levels::count ? 0 : 1;
    }
  broken.missed += next == end ? 0 : 1;
}

/// The splits for some numbers of blocks, with any workspace and with none.
template <class Mask = full>
void check_shapes(law& broken, const call_sizes& sizes, int leaf_keys, int tile_rows,
                  const std::vector<int>& all_blocks, const Mask& mask = {}) {
  const auto p = sizes.params(mask);
  const split_work work = work_of_call(p, leaf_keys, tile_rows);
  for (const int blocks : all_blocks)
    for (const int64 available : {giwa::max_int64, int64{0}})
      check_splits(broken, p, shape_of_splits(work, blocks, available), leaf_keys, tile_rows);
}

std::vector<int> up_to_200() {
  std::vector<int> all(200);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i) + 1;
  return all;
}
const std::vector<int> some_blocks{1, 2, 3, 7, 8, 16, 31, 64, 78, 114, 132, 148, 200};

/// find_split() by the threads of a block.
template <class Params>
struct find_split_op {
  static constexpr int max_threads = 384, min_blocks = 1;
  struct params {
    Params call;
    split_shape shape;
    int leaf_keys, tile_rows;
    split_position* found;
  };
  struct shared_storage {
    split_search search;
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int64 split = block.block_rank();
    const split_position position = find_split(block, p.call, p.shape, split, p.leaf_keys, p.tile_rows, s.search);
    if (block.rank() == 0) p.found[split] = position;
  }
};

/// find_split_early() by a warp.
template <class Params>
struct find_split_early_op {
  static constexpr int max_threads = 32, min_blocks = 1;
  struct params {
    Params call;
    split_shape shape;
    int leaf_keys;
    split_position* found;
    int* other_lengths;
    int changed;  // that changes in between; -1: none
    bool* same;
  };
  struct shared_storage {
    split_search search;
    int lengths[most_early_sequences];
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const auto split = static_cast<int>(block.block_rank());
    const split_position position =
        find_split_early<most_early_sequences>(block, p.call, p.shape, split, p.leaf_keys, s.search, s.lengths);
    if (block.rank() == 0) p.found[split] = position;
    block.sync();
    if (block.rank() == 0 && p.changed >= 0) p.other_lengths[p.changed] ^= 1;
    block.sync();
    if (!has_same_lengths<most_early_sequences>(block, p.call, s.lengths)) p.same[split] = false;
  }
};

/// Counts the splits that a block finds elsewhere than plain_search.
template <class Params>
int64 splits_elsewhere(const Params& call, const split_shape& shape, int leaf_keys, int tile_rows, int threads) {
  using op = find_split_op<Params>;
  const auto splits = static_cast<std::size_t>(shape.splits);
  std::vector<split_position> found(splits);
  const typename op::params p{call, shape, leaf_keys, tile_rows, found.data()};
  REQUIRE(giwa::launch(giwa::host, {.grid = shape.splits, .block = threads}, op{}, p).ok());
  const plain_search right(call, shape, leaf_keys, tile_rows);
  int64 elsewhere = 0;
  for (std::size_t split = 0; split < splits; ++split) {
    const split_position expected = right.position(static_cast<int64>(split)), &seen = found[split];
    const cached_sequence &a = seen.sequence, &b = expected.sequence;
    const sequence_leaves &l = seen.leaves_of_sequence, &m = expected.leaves_of_sequence;
    const bool same_split =
        seen.number == expected.number && seen.length == expected.length && seen.total == expected.total;
    const bool same_position = seen.before == expected.before && l.first == m.first && l.end == m.end &&
                               l.row_tiles == m.row_tiles && a.batch == b.batch &&
                               a.first_query_row == b.first_query_row && a.queries == b.queries && a.keys == b.keys &&
                               a.offset == b.offset && a.q_batch == b.q_batch && a.first_entry == b.first_entry;
    if (!same_split || (expected.leaves() > 0 && !same_position)) ++elsewhere;
  }
  return elsewhere;
}

bool are_equal(const few_rows_work_tile& x, const few_rows_work_tile& y) {
  const cached_sequence &a = x.sequence, &b = y.sequence;
  return a.batch == b.batch && a.first_query_row == b.first_query_row && a.queries == b.queries && a.keys == b.keys &&
         a.offset == b.offset && a.q_batch == b.q_batch && a.first_entry == b.first_entry &&
         x.leaves.first == y.leaves.first && x.leaves.end == y.leaves.end && x.leaves.row_tiles == y.leaves.row_tiles &&
         x.head == y.head && x.row_tile == y.row_tile && x.begin == y.begin && x.end == y.end;
}

/// Counts the splits whose work tiles are others if a warp finds them early, or whose changed lengths it does not notice.
template <class Params>
int64 early_splits_elsewhere(const Params& call, const split_shape& shape, std::vector<int>& lengths, int changed) {
  using op = find_split_early_op<Params>;
  constexpr int leaf_keys = 128, tile_rows = 16;
  const plain_search right(call, shape, leaf_keys, tile_rows);
  std::vector<split_position> found(static_cast<std::size_t>(shape.splits));
  const auto same = std::make_unique<bool[]>(found.size());
  std::fill_n(same.get(), found.size(), true);
  const typename op::params p{call, shape, leaf_keys, found.data(), lengths.data(), changed, same.get()};
  REQUIRE(giwa::launch(giwa::host, {.grid = shape.splits, .block = 32}, op{}, p).ok());
  if (changed >= 0) {
    if (shape.splits % 2 != 0) lengths[static_cast<std::size_t>(changed)] ^= 1;
    return std::count(same.get(), same.get() + found.size(), true);
  }
  int64 elsewhere = std::count(same.get(), same.get() + found.size(), false);
  for (int column = 0; column < shape.columns; ++column)
    for (std::size_t i = 0; i < found.size(); ++i) {
      split_walk early(call, shape, column, leaf_keys, tile_rows), plain(call, shape, column, leaf_keys, tile_rows);
      const auto split = static_cast<int64>(i);
      plain.enter(shape, right.takes_whole_tiles(shape) ? right.whole_tiles(shape, split) : right.position(split));
      bool more = early.enter_early(found[i]);
      while (plain.next()) {
        elsewhere += more && are_equal(early.work(), plain.work()) ? 0 : 1;
        more = more && early.next();
      }
      elsewhere += more ? 1 : 0;
    }
  return elsewhere;
}

std::vector<int> random_lengths(std::mt19937& random, int64 sequences, int most) {
  std::vector<int> lengths(static_cast<std::size_t>(sequences));
  for (int& l : lengths) {
    l = std::uniform_int_distribution<int>(-2, most + 2)(random);  // those out of range are cut
    if (std::uniform_int_distribution<int>(0, 3)(random) == 0) l = 0;
  }
  return lengths;
}

}  // namespace

TEST_CASE("splits of sequences of one length") {
  law broken;
  for (const int64 keys : {0, 1, 127, 128, 129, 255, 256, 257, 1024, 8192})
    for (const int64 sequences : {1, 2, 5}) {
      check_shapes(broken, {.sequences = sequences, .keys = keys}, 128, 16, some_blocks);
      check_shapes(broken, {.sequences = sequences, .queries = 3, .keys = keys, .heads = 24, .kv_heads = 3}, 128, 16,
                   some_blocks);
    }
  broken.holds();
}

TEST_CASE("every number of blocks from 1 to 200") {
  law broken;
  std::mt19937 random(1);
  const std::vector<int> all = up_to_200();
  check_shapes(broken, {.keys = 70000, .heads = 8, .kv_heads = 8}, 128, 16, all);
  check_shapes(broken, {.sequences = 3, .keys = 4096, .heads = 5, .kv_heads = 5}, 128, 16, all);
  check_shapes(broken,
               {.sequences = 7, .keys = 9000, .heads = 32, .kv_heads = 8, .lengths = {1, 9000, 0, 127, 129, 4000, -5}},
               128, 16, all);
  check_shapes(broken, {.sequences = 40, .keys = 1 << 16, .lengths = random_lengths(random, 40, 1 << 16)}, 64, 32, all);
  check_shapes(broken, {.sequences = 2, .queries = 9, .keys = 1000, .heads = 64, .kv_heads = 1, .lengths = {1000, 3}},
               32, 32, all);
  broken.holds();
}

TEST_CASE("many sequences, and heads of keys that leave no block idle or are not columns") {
  law broken;
  std::mt19937 random(2);
  for (const int64 sequences : {64, 333, 4096})
    for (const int64 kv_heads : {1, 8, 48, 96, 150, 250}) {
      if (sequences * kv_heads > 40000) continue;
      const call_sizes sizes{.sequences = sequences,
                             .keys = 3000,
                             .heads = kv_heads,
                             .kv_heads = kv_heads,
                             .lengths = random_lengths(random, sequences, 3000)};
      check_shapes(broken, sizes, 128, 16, {1, 78, 132, 200});
    }
  broken.holds();
  CHECK(broken.tiles > 100000);
}

TEST_CASE("splits of the longest sequences") {
  law broken;
  const int longest = static_cast<int>(giwa::attention_limits::length);
  check_shapes(broken, {.keys = longest}, 128, 16, some_blocks);
  check_shapes(broken,
               {.sequences = 3, .keys = longest, .heads = 8, .kv_heads = 2, .lengths = {longest, 5, 2147483647}}, 32,
               16, some_blocks);
  broken.holds();
}

TEST_CASE("splits of packed queries, also of sequences without any") {
  law broken;
  for (const std::vector<int>& offsets :
       {std::vector{0, 1, 1, 5, 40}, {0, 0, 0, 0, 0}, {3, 20, 20, 21, 64}, {-5, 2, 30, 100, 2000000000}})
    check_shapes(broken,
                 {.sequences = 4,
                  .queries = 64,
                  .keys = 2000,
                  .heads = 8,
                  .kv_heads = 2,
                  .lengths = {2000, 700, 0, 129},
                  .offsets = offsets},
                 128, 16, some_blocks);
  broken.holds();
}

TEST_CASE("splits of packed queries whose offsets decrease stay inside the workspace") {
  law broken;
  std::vector<int> back_and_forth(17);
  for (std::size_t i = 0; i < back_and_forth.size(); ++i) back_and_forth[i] = i % 2 == 0 ? 0 : 64;
  for (const int64 keys : {131072, 1048576})
    check_shapes(broken, {.sequences = 16, .queries = 64, .keys = keys, .heads = 8, .offsets = back_and_forth}, 128, 32,
                 some_blocks);
  std::mt19937 random(7);
  const auto up_to = [&](int64 most) { return std::uniform_int_distribution<int64>(0, most)(random); };
  for (int i = 0; i < 300; ++i) {
    call_sizes sizes{
        .sequences = 1 + up_to(40), .queries = 1 + up_to(100), .keys = 1 + up_to(up_to(1) == 0 ? 20000 : 1 << 20)};
    sizes.kv_heads = 1 + up_to(2), sizes.heads = sizes.kv_heads * (1 + up_to(15));
    sizes.lengths.assign(static_cast<std::size_t>(sizes.sequences), static_cast<int>(sizes.keys));
    for (int64 b = 0; b <= sizes.sequences; ++b) sizes.offsets.push_back(static_cast<int>(up_to(sizes.queries)));
    check_shapes(broken, sizes, 128, i % 2 == 0 ? 16 : 32, {7, 132, 200});
  }
  broken.holds();
}

TEST_CASE("masks that leave leaves out at either end") {
  law broken;
  std::mt19937 random(3);
  const call_sizes sizes{.sequences = 30,
                         .queries = 5,
                         .keys = 20000,
                         .heads = 4,
                         .kv_heads = 2,
                         .lengths = random_lengths(random, 30, 20000)};
  for (const int window : {0, 1, 128, 1000, 30000})
    check_shapes(broken, sizes, 128, 16, some_blocks, sliding_window{window} & causal::bottom_right);
  check_shapes(broken, sizes, 128, 16, some_blocks, causal{giwa::alignment::offset(300)});
  check_shapes(broken, sizes, 128, 16, some_blocks, causal{giwa::alignment::offset(-30000)});
  broken.holds();
}

TEST_CASE("leaves_of leaves out what a mask leaves out, and nothing else") {
  int64 missed = 0, in_vain = 0, without = 0;
  const auto check = [&](const auto& mask) {
    for (const int64 queries : {1, 4, 9})
      for (int keys = 0; keys <= 400; keys += keys < 40 ? 1 : 13) {
        const call_sizes sizes{.queries = queries, .keys = 400, .lengths = {keys}};
        const auto p = sizes.params(mask);
        const cached_sequence s = p.at(0);
        const sequence_leaves l = leaves_of(p, s, 8, 16);
        std::set<int> kept;
        for (int i = 0; i < s.queries; ++i)
          for (int key = 0; key < s.keys; ++key)
            if (mask(giwa::attention_coord{0, 0, i, key, i + s.offset})) kept.insert(key / 8);
        for (const int leaf : kept) missed += leaf >= l.first && leaf < l.end ? 0 : 1;
        without += l.count() >= 1 ? 0 : 1;
        if (kept.empty())
          in_vain += l.count() == 1 ? 0 : 1;
        else
          in_vain += kept.count(l.first) == 1 && kept.count(l.end - 1) == 1 ? 0 : 1;
      }
  };
  check(full{});
  check(causal::bottom_right);
  check(causal{giwa::alignment::offset(17)});
  check(causal{giwa::alignment::offset(-5)});
  for (const int window : {1, 7, 8, 9, 100}) check(sliding_window{window} & causal::bottom_right);
  check(giwa::prefix{13});
  CHECK(missed == 0);
  CHECK(in_vain == 0);
  CHECK(without == 0);
}

TEST_CASE("blocks find their splits") {
  std::mt19937 random(4);
  int64 elsewhere = 0;
  for (const int64 sequences : {1, 31, 32, 33, 127, 129, 500, 1030})
    for (const int threads : {32, 128, 384}) {
      const call_sizes sizes{.sequences = sequences,
                             .queries = 2,
                             .keys = 5000,
                             .heads = 12,
                             .kv_heads = 3,
                             .lengths = random_lengths(random, sequences, 5000)};
      const auto p = sizes.params(full{});
      for (const int blocks : {3, 20})
        elsewhere +=
            splits_elsewhere(p, shape_of_splits(work_of_call(p, 128, 16), blocks, giwa::max_int64), 128, 16, threads);
    }
  CHECK(elsewhere == 0);
  // Without lengths all sequences are alike; the host can say so, also under a mask that it knows.
  law broken;
  for (const int64 keys : {0, 1, 128, 3000}) {
    const call_sizes sizes{.sequences = 77, .keys = keys, .heads = 4, .kv_heads = 2};
    const auto plain = sizes.params(full{});
    const auto masked = sizes.params(sliding_window{200} & causal::bottom_right);
    for (const int blocks : {2, 5, 26}) {
      split_shape shape = shape_of_splits(work_of_call(plain, 128, 16), blocks, giwa::max_int64);
      elsewhere += splits_elsewhere(plain, shape, 128, 16, 64);
      shape.set_alike(plain.at(0), leaves_of(plain, plain.at(0), 128, 16), sizes.sequences);
      CHECK(shape.total > 0);
      elsewhere += splits_elsewhere(plain, shape, 128, 16, 64);
      split_work work = work_of_call(masked, 128, 16);
      elsewhere += splits_elsewhere(masked, shape_of_splits(work, blocks, giwa::max_int64), 128, 16, 64);
      const sequence_leaves leaves = leaves_of(masked, masked.at(0), 128, 16);
      work.exact = true, work.tile_leaves = leaves.count();
      for (const int64 available : {giwa::max_int64, int64{0}}) {
        shape = shape_of_splits(work, blocks, available);
        shape.set_alike(masked.at(0), leaves, sizes.sequences);
        elsewhere += splits_elsewhere(masked, shape, 128, 16, 64);
        check_splits(broken, masked, shape, 128, 16);
      }
    }
  }
  broken.holds();
  CHECK(elsewhere == 0);
  const call_sizes packed{.sequences = 5,
                          .queries = 50,
                          .keys = 900,
                          .heads = 16,
                          .kv_heads = 2,
                          .lengths = {900, 1, 0, 450, 900},
                          .offsets = {0, 0, 7, 7, 20, 50}};
  const auto p = packed.params(full{});
  for (const int blocks : {1, 2, 9, 40})
    elsewhere += splits_elsewhere(p, shape_of_splits(work_of_call(p, 64, 32), blocks, giwa::max_int64), 64, 32, 96);
  CHECK(elsewhere == 0);
}

TEST_CASE("a warp finds splits early, where all leaves of all sequences count") {
  std::mt19937 random(8);
  int64 elsewhere = 0, calls = 0, whole = 0, divided = 0;
  const auto check_shape = [&](const auto& p, const split_shape& shape, call_sizes& sizes) {
    elsewhere += early_splits_elsewhere(p, shape, sizes.lengths, -1);
    if (!sizes.lengths.empty())
      elsewhere += early_splits_elsewhere(p, shape, sizes.lengths, static_cast<int>(sizes.sequences) - 1);
  };
  const auto check = [&](call_sizes& sizes, const auto& mask) {
    const auto p = sizes.params(mask);
    for (const int blocks : {1, 3, 20, 132}) {
      split_shape shape = shape_of_splits(work_of_call(p, 128, 16), blocks, giwa::max_int64);
      if (!may_find_early(p, shape, 128, 16, most_early_sequences)) continue;
      ++calls;
      check_shape(p, shape, sizes);
      if (sizes.kv_heads > 1 || sizes.sequences <= 32) continue;
      shape.early_tiles = static_cast<int>(giwa::ceil_div(sizes.sequences, int64{shape.splits}));
      check_shape(p, shape, sizes);
      ++(plain_search(p, shape, 128, 16).takes_whole_tiles(shape) ? whole : divided);
      shape.slots = 0;
      check_shape(p, shape, sizes);
    }
  };
  for (const int64 sequences : {1, 2, 7, 31, 32, 33, 100, 256})
    for (const int64 kv_heads : {1, 3, 8})
      for (const int keys : {0, 1, 128, 5000}) {
        call_sizes sizes{
            .sequences = sequences, .queries = 2, .keys = keys, .heads = 2 * kv_heads, .kv_heads = kv_heads};
        check(sizes, full{});
        check(sizes, causal::bottom_right);
        sizes.lengths = random_lengths(random, sequences, keys);
        check(sizes, full{});
        check(sizes, causal::bottom_right);
      }
  CHECK(elsewhere == 0);
  CHECK(calls > 140);
  CHECK(whole > 5);
  CHECK(divided > 10);
  const int longest = static_cast<int>(giwa::attention_limits::length);
  call_sizes of_longest{.sequences = 32, .keys = longest, .lengths = random_lengths(random, 32, longest - 2)};
  check(of_longest, full{});
  CHECK(elsewhere == 0);

  const auto is_early = [](const call_sizes& sizes, const auto& mask) {
    const auto p = sizes.params(mask);
    return may_find_early(p, shape_of_splits(work_of_call(p, 128, 16), 132, giwa::max_int64), 128, 16,
                          most_early_sequences);
  };
  const std::vector<int> lengths(257, 3000);
  CHECK(
      is_early({.sequences = 32, .queries = 4, .keys = 5000, .heads = 32, .kv_heads = 8, .lengths = lengths}, full{}));
  CHECK(is_early({.sequences = 256, .keys = 5000, .lengths = lengths}, full{}));
  CHECK(!is_early({.sequences = 257, .keys = 5000, .lengths = lengths}, full{}));
  CHECK(!is_early({.queries = 5, .keys = 5000, .heads = 32, .kv_heads = 8, .lengths = lengths}, full{}));  // two tiles
  CHECK(!is_early({.keys = 5000, .lengths = lengths}, causal::top_left));
  CHECK(!is_early({.keys = 5000, .lengths = lengths}, sliding_window{100} & causal::bottom_right));
  CHECK(!is_early({.queries = 4, .keys = 5000, .lengths = lengths, .offsets = {0, 4}}, full{}));
  CHECK(!is_early({.keys = 128, .lengths = lengths}, full{}));  // no work tile is divided
  // More than 2^30 leaves.
  CHECK(!is_early({.sequences = 32, .keys = longest, .heads = 150, .kv_heads = 150, .lengths = lengths}, full{}));
  const auto with_leaves = of_longest.params(full{});
  split_shape shape = shape_of_splits(work_of_call(with_leaves, 128, 16), 132, giwa::max_int64);
  CHECK(may_find_early(with_leaves, shape, 128, 16));
  shape.heads_in_column = 3;  // 1.5 2^30
  CHECK(!may_find_early(with_leaves, shape, 128, 16));
  // Just below 2^30, and just above: a sequence may have a leaf more than its keys fill.
  for (const int leaves : {11184809, 11184810}) {
    of_longest.keys = int64{128} * leaves;
    CHECK(may_find_early(of_longest.params(full{}), shape, 128, 16) == (leaves == 11184809));
  }
}

TEST_CASE("a walk ends with the last sequence, also where a split should have more leaves") {
  const call_sizes sizes{.sequences = 3, .keys = 1000, .lengths = {1000, 0, 700}};
  const auto p = sizes.params(full{});
  const split_shape shape = shape_of_splits(work_of_call(p, 128, 16), 1, giwa::max_int64);
  split_position position = plain_search(p, shape, 128, 16).position(0);
  position.length += 5, position.total += 5;
  split_walk walk(p, shape, 0, 128, 16);
  walk.enter(shape, position);
  int tiles = 0;
  while (walk.next() && tiles < 100) ++tiles;
  CHECK(tiles == 3);
  CHECK(!walk.next());
}

TEST_CASE("the shape of splits: within the workspace, and on all blocks where it is large enough") {
  std::mt19937 random(5);
  const auto up_to = [&](int64 most) { return std::uniform_int_distribution<int64>(0, most)(random); };
  int64 too_large = 0, too_many = 0, idle = 0, fewer = 0, split = 0;
  for (int i = 0; i < 100000; ++i) {
    const split_work w{.sequences = 1,
                       .kv_heads = 1 + up_to(up_to(1) == 0 ? 12 : 200),
                       .tiles = 1 + up_to(up_to(2) == 0 ? 4000 : 30),
                       .tile_leaves = 1 + up_to(up_to(2) == 0 ? int64{1} << 24 : 300),
                       .rows = 1 + up_to(31),
                       .columns = 16 * (1 + up_to(31)),
                       .exact = up_to(3) == 0};
    const int64 blocks = 1 + up_to(199), available = int64{1} << up_to(40);
    const split_shape s = shape_of_splits(w, blocks, available), all = shape_of_splits(w, blocks, giwa::max_int64),
                      none = shape_of_splits(w, blocks, 0);
    for (const split_shape& x : {s, all, none}) {
      too_many += int64{x.splits} * x.columns <= blocks && x.splits >= 1 ? 0 : 1;
      too_many += int64{x.columns} * x.heads_in_column == w.kv_heads ? 0 : 1;
    }
    too_large += workspace_bytes_of(s, w.columns) <= available && none.slots == 0 ? 0 : 1;
    // At least nine tenths of the blocks, or one for each leaf.
    const int64 leaves = w.tiles * w.tile_leaves * w.kv_heads;
    idle += int64{all.splits} * all.columns * 10 >= std::min(blocks * 9, leaves * 9) ? 0 : 1;
    // And where none of equal work tiles is divided, at least fifteen sixteenths.
    if (all.whole_tiles > 0)
      idle += all.columns * giwa::ceil_div(int64{all.whole_tiles}, int64{all.tiles_of_split}) >= blocks - blocks / 16
                  ? 0
                  : 1;
    // Without a workspace, a block for each work tile.
    idle += int64{none.splits} * none.columns * 10 >= std::min(blocks, w.tiles * w.kv_heads) * 9 ? 0 : 1;
    fewer += none.splits <= s.splits && s.splits <= all.splits ? 0 : 1;
    split += s.slots > 0 ? 1 : 0;
  }
  CHECK(too_large == 0);
  CHECK(too_many == 0);
  CHECK(idle == 0);
  CHECK(fewer == 0);
  CHECK(split > 10000);
}

TEST_CASE("splits are whole work tiles where nearly all blocks have one") {
  const auto shape = [](int64 sequences, int64 kv_heads, bool exact) {
    return shape_of_splits(split_work{.sequences = sequences,
                                      .kv_heads = kv_heads,
                                      .tiles = sequences,
                                      .tile_leaves = 64,
                                      .rows = 16,
                                      .columns = 128,
                                      .exact = exact},
                           132, giwa::max_int64);
  };
  const auto lengths = [&](int64 sequences, int64 kv_heads, int64 all) {
    return shape(sequences, kv_heads, false).length_of(all);
  };
  CHECK(shape(128, 1, true).slots == 0);
  CHECK(shape(256, 1, true).slots == 0);
  CHECK(shape(32, 4, true).slots == 0);
  CHECK(shape(128, 1, false).slots > 0);  // lengths may differ
  CHECK(shape(120, 1, true).slots > 0);
  CHECK(shape(16, 8, true).slots == 0);
  CHECK(shape(15, 8, true).slots > 0);  // 12 of 132 blocks would be idle
  CHECK(lengths(128, 1, 128 * 64) == 64);
  CHECK(lengths(128, 1, 128 * 3) == 3);
  CHECK(lengths(250, 1, 250 * 50) == 100);
  CHECK(lengths(32, 4, 32 * 64) == 64);
  CHECK(lengths(128, 1, 128 * 64 - 1) == 63);
  CHECK(lengths(120, 1, 120 * 64) == 59);
  CHECK(lengths(140, 1, 140 * 64) == 68);
}

TEST_CASE("packed rows are the queries of all heads of a group, each once") {
  int64 wrong = 0;
  for (int group = 1; group <= 128; ++group)
    for (int queries = 1; queries <= 64; ++queries)
      for (const int tile_rows : {16, 32}) {
        const call_sizes sizes{.queries = queries, .keys = 1, .heads = 3 * group, .kv_heads = 3};
        const auto p = sizes.params(full{});
        const giwa::fast_divisor divisor(group);
        std::vector<int> times(static_cast<std::size_t>(group * queries), 0);
        few_rows_work_tile work{};
        work.sequence = p.at(0);
        work.head = 2;
        for (; work.row_tile * tile_rows < group * queries; ++work.row_tile) {
          const packed_rows rows = rows_of(p, work, divisor, tile_rows);
          wrong += rows.rows >= 1 && rows.rows <= tile_rows ? 0 : 1;
          for (int row = 0; row < rows.rows; ++row) {
            const int query = rows.query(row), head = rows.head(row) - 2 * group;
            if (query < 0 || query >= queries || head < 0 || head >= group)
              ++wrong;
            else
              ++times[static_cast<std::size_t>(query * group + head)];
          }
        }
        for (const int n : times) wrong += n == 1 ? 0 : 1;
      }
  CHECK(wrong == 0);
}

namespace {

constexpr giwa::cached_problem decode{
    .sequences = 1, .keys = 8192, .heads = 32, .kv_heads = 8, .head_size = 128, .head_size_v = 128};
// 16 splits of 8 heads, each of 4 leaves of 128 keys: at least 4 partials of 4 rows, and not many more.
constexpr int64 four_states = 16 * 8 * 4 * (4 * 128 + 4 * 2) * 4;
static_assert(giwa::workspace_bytes(decode, {.multiprocessors = 132}) >= four_states);
static_assert(giwa::workspace_bytes(decode, {.multiprocessors = 132}) <= 3 * four_states);
static_assert(!giwa::detail::may_have_many_rows(decode) && giwa::detail::many_rows_bytes(decode, 132) == 0);
// It depends little on the number of sequences: a split hands on partials of one sequence, however many it computes.
constexpr int64 bytes_of(int64 sequences) {
  giwa::cached_problem p = decode;
  p.sequences = sequences, p.keys = 131072;
  return giwa::workspace_bytes(p, {.multiprocessors = 132});
}
static_assert(bytes_of(1) < bytes_of(256) && bytes_of(4096) == bytes_of(256) && bytes_of(256) < 10'000'000);

}  // namespace

TEST_CASE("the tile of few rows has 8 rows, 16 or 32") {
  for (const auto& [heads, queries, rows] : {std::tuple<int64, int64, int>{1, 1, 8},
                                             {8, 1, 8},
                                             {4, 2, 8},
                                             {9, 1, 16},
                                             {16, 1, 16},
                                             {4, 4, 16},
                                             {17, 1, 32},
                                             {32, 1, 32},
                                             {1, 0, 32}}) {
    giwa::cached_problem p = decode;
    p.heads = heads, p.kv_heads = 1, p.queries = queries, p.head_size_v = 65;
    CHECK(giwa::detail::few_rows_tile_of(p).rows == rows);
    CHECK(giwa::detail::few_rows_tile_of(p).columns == 80);
  }
}

TEST_CASE("the slots of all splits are apart, and fill the workspace") {
  giwa::detail::split_params<int> p{};
  p.shape.splits = 3, p.shape.columns = 2, p.shape.slots = 5, p.shape.rows = 7, p.columns = 24;
  std::vector<float> memory(static_cast<std::size_t>(giwa::detail::workspace_bytes_of(p.shape, p.columns) / 4));
  p.workspace = memory.data();
  std::vector<const float*> slots;
  for (int split = 0; split < 3; ++split)
    for (int column = 0; column < 2; ++column)
      for (const bool begins : {false, true})
        for (int i = 0; i < (begins ? giwa::detail::fold_levels::count : p.shape.slots); ++i)
          slots.push_back(p.slot_of(split, column, begins, i));
  const int64 floats = 7 * 24 + 16;  // a slot: 7 rows, their m and l, up to a multiple of 4
  int wrong = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) wrong += slots[i] != memory.data() + static_cast<int64>(i) * floats;
  CHECK(wrong == 0);
  CHECK(static_cast<int64>(memory.size()) == static_cast<int64>(slots.size()) * floats);
}

TEST_CASE("workspace_bytes of a cached call is what a call uses") {
  std::mt19937 random(6);
  const auto up_to = [&](int64 most) { return std::uniform_int_distribution<int64>(0, most)(random); };
  int64 other = 0, less = 0, used = 0, many = 0;
  for (int i = 0; i < 20000; ++i) {
    const bool packed = up_to(2) == 0;
    giwa::cached_problem p{.sequences = 1 + up_to(up_to(1) == 0 ? 2 : 300),
                           .queries = 1 + up_to(up_to(1) == 0 ? 3 : 200),
                           .rows = packed ? 1 + up_to(1000) : 0,
                           .keys = up_to(up_to(1) == 0 ? 1000 : 1000000),
                           .heads = 0,
                           .kv_heads = 1 + up_to(15),
                           .head_size = 1 + up_to(511),
                           .head_size_v = 1 + up_to(511)};
    p.heads = p.kv_heads * (1 + up_to(15));
    const int blocks = 1 + static_cast<int>(up_to(199));
    const int64 both = giwa::workspace_bytes(p, {.multiprocessors = blocks}), of_many_rows = many_rows_bytes(p, blocks);
    if (both == of_many_rows && both > 0) ++many;
    if (of_many_rows > 0) {
      const auto slots = [&](int64 bytes) { return shape_of_many_rows(p, blocks, bytes, false).slots; };
      less += slots(of_many_rows) == slots(giwa::max_int64) ? 0 : 1;
    }
    const few_rows_tile tiles = few_rows_tile_of(p);
    const auto splits_bytes = [&](const split_work& work, int64 available) {
      return workspace_bytes_of(shape_of_splits(work, blocks, available), tiles.columns);
    };
    const int64 bytes = both > of_many_rows ? both : splits_bytes(work_of(p, tiles, false), giwa::max_int64);
    less += bytes <= both ? 0 : 1;
    for (const bool exact : {false, true}) {
      const split_work work = work_of(p, tiles, exact);
      const auto bytes_with = [&](int64 available) { return splits_bytes(work, available); };
      other += bytes_with(bytes) == bytes || (exact && bytes_with(bytes) <= bytes) ? 0 : 1;
      other += bytes_with(giwa::max_int64) <= bytes ? 0 : 1;
      if (bytes > 0) less += bytes_with(bytes - 1) < bytes ? 0 : 1;
    }
    used += bytes > 0 ? 1 : 0;
  }
  CHECK(other == 0);
  CHECK(less == 0);
  CHECK(used > 5000);
  CHECK(many > 20);  // the launches for many rows use more
}

TEST_CASE("workspace_bytes of a cached call whose tiles have two heads of keys") {
  std::mt19937 random(7);
  const auto up_to = [&](int64 most) { return std::uniform_int_distribution<int64>(0, most)(random); };
  int64 less = 0, pairs = 0;
  for (int i = 0; i < 5000; ++i) {
    giwa::cached_problem p{.sequences = 1 + up_to(300),
                           .queries = 1 + up_to(3),
                           .keys = up_to(20000),
                           .kv_heads = 1 + up_to(15),
                           .head_size = 64,
                           .head_size_v = 64,
                           .cache_bytes = 1};
    p.heads = p.kv_heads * (1 + up_to(7));
    if (!pairs_of_heads_are_faster(p)) continue;
    ++pairs;
    const int blocks = 1 + static_cast<int>(up_to(199));
    const giwa::cached_problem of_pairs = problem_of_pairs(p);
    const few_rows_tile tiles = few_rows_tile_of(of_pairs);
    for (const bool exact : {false, true}) {
      const split_work work = work_of(of_pairs, tiles, exact);
      const split_shape shape = shape_of_splits(work, blocks, giwa::max_int64);
      less += workspace_bytes_of(shape, tiles.columns) <= giwa::workspace_bytes(p, {.multiprocessors = blocks}) ? 0 : 1;
    }
  }
  CHECK(less == 0);
  CHECK(pairs > 500);
  giwa::cached_problem p{.sequences = 32, .queries = 1, .keys = 8192, .heads = 32, .kv_heads = 8, .head_size = 64};
  p.head_size_v = 64, p.cache_bytes = 1;
  const auto with = [&](auto member, int64 value) {
    giwa::cached_problem other = p;
    other.*member = value;
    return pairs_of_heads_are_faster(other);
  };
  CHECK(pairs_of_heads_are_faster(p));
  CHECK(!with(&giwa::cached_problem::sequences, 1));
  CHECK(!with(&giwa::cached_problem::queries, 3));  // 24 rows
  CHECK(!with(&giwa::cached_problem::rows, 32));
  CHECK(!with(&giwa::cached_problem::kv_heads, 1));
  CHECK(!with(&giwa::cached_problem::kv_heads, 0));
  CHECK(!with(&giwa::cached_problem::head_size_v, 128));
  CHECK(!with(&giwa::cached_problem::cache_bytes, 2));
}

TEST_CASE("workspace_bytes of a cached call of sizes without work") {
  giwa::cached_problem p = decode;
  CHECK(giwa::workspace_bytes(p) == giwa::workspace_bytes(p, {.multiprocessors = 192}));
  for (int64 giwa::cached_problem::*size :
       {&giwa::cached_problem::sequences, &giwa::cached_problem::queries, &giwa::cached_problem::heads}) {
    p = decode;
    p.*size = 0;
    CHECK(giwa::workspace_bytes(p, {.multiprocessors = 132}) == 0);
    p.*size = -1;
    CHECK(giwa::workspace_bytes(p, {.multiprocessors = 132}) == 0);
  }
  p = decode;
  p.queries = 0, p.rows = 5;  // packed, of which nobody has said more
  CHECK(giwa::workspace_bytes(p, {.multiprocessors = 132}) > 0);
  p = decode;
  p.cache_bytes = 1;
  CHECK(giwa::workspace_bytes(p, {.multiprocessors = 132}) == giwa::workspace_bytes(decode, {.multiprocessors = 132}));
  p.element_bytes = 4;  // a kernel without a workspace
  CHECK(giwa::workspace_bytes(p, {.multiprocessors = 132}) == 0);
  p.cache_bytes = 4;
  CHECK(giwa::workspace_bytes(p, {.multiprocessors = 132}) == 0);
  p = decode;
  p.head_size = 577;
  CHECK(giwa::workspace_bytes(p, {.multiprocessors = 132}) == 0);
}

TEST_CASE("latent rows are many or few by their number in a sequence alone") {
  giwa::cached_problem p = decode;
  p.head_size = latent_head_size, p.head_size_v = latent_head_size_v, p.kv_heads = 2;
  for (const int64 group : {1, 3, 16, 32, 33, 128}) {
    p.heads = 2 * group;
    const int few = latent_few_queries(p);
    CHECK(few * group <= latent_few_rows);
    CHECK((few + 1) * group > latent_few_rows);
    for (const int64 sequences : {1, 500}) {
      p.sequences = sequences;
      CHECK(latent_few_queries(p) == few);
    }
    p.latent_tile = giwa::latent_tile::rows_64;
    CHECK(latent_few_queries(p) == 0);
    p.latent_tile = giwa::latent_tile::rows_16;
    CHECK(latent_few_queries(p) == 2147483647);
    p.latent_tile = giwa::latent_tile::by_rows;
  }
}

TEST_CASE("latent rows are divided by the batch on request") {
  giwa::cached_problem p{.sequences = 128,
                         .keys = 8192,
                         .heads = 128,
                         .kv_heads = 1,
                         .head_size = latent_head_size,
                         .head_size_v = latent_head_size_v};
  const auto leaf = [&](int64 sequences, int64 keys, int64 blocks) {
    p.sequences = sequences, p.keys = keys;
    return latent_wide_leaf(p, blocks);
  };
  CHECK(leaf(128, 8192, 132) == latent_wide_leaf_keys);
  p.division = giwa::division::by_batch;
  CHECK(leaf(128, 8192, 132) == 8192);  // two work tiles for nearly every multiprocessor
  CHECK(leaf(128, 8191, 132) == 8192);
  CHECK(leaf(1, 32768, 132) == 512);  // 64 leaves of each of two work tiles
  CHECK(leaf(1, 64, 132) == 64);
  CHECK(leaf(1, 0, 132) == 64);
  CHECK(leaf(32, 4096, 132) == 2048);  // 128 leaves
  CHECK(leaf(100000, 4096, 132) == 4096);
  // The multiprocessor with the most work has at most a quarter more than the mean, where there is work for all.
  int64 uneven = 0;
  for (int64 sequences = 1; sequences < 300; ++sequences) {
    const int64 keys = 32768, length = leaf(sequences, keys, 132),
                leaves = 2 * sequences * giwa::ceil_div(keys, length);
    uneven += giwa::ceil_div(leaves, int64{132}) * length * 132 * 4 <= 2 * sequences * keys * 5 ? 0 : 1;
  }
  CHECK(uneven == 0);
}

TEST_CASE("each tile of many latent rows is computed once, and its partials fit into the workspace") {
  std::mt19937 random(7);
  const auto up_to = [&](int64 most) { return std::uniform_int_distribution<int64>(0, most)(random); };
  int64 missed = 0, too_many = 0, more_bytes = 0, divided = 0, misplaced = 0;
  for (int i = 0; i < 3000; ++i) {
    giwa::cached_problem p{.sequences = 1 + up_to(up_to(1) == 0 ? 2 : 60),
                           .queries = 1 + up_to(3),
                           .keys = 1 + up_to(up_to(1) == 0 ? 9000 : 3000000),
                           .kv_heads = 1 + up_to(2),
                           .head_size = latent_head_size,
                           .head_size_v = latent_head_size_v};
    p.heads = p.kv_heads * (33 + up_to(200));
    if (i / 2 % 2 == 1) p.cache_bytes = 1;  // rows of 656 bytes
    if (i % 2 == 1) p.division = giwa::division::by_batch;
    const int blocks = 1 + static_cast<int>(up_to(199)), leaf_keys = latent_wide_leaf(p, blocks);
    CHECK((leaf_keys > 0 && leaf_keys % latent_leaf_keys == 0));
    const split_work work = latent_wide_work(p, leaf_keys, true);
    const int64 available = up_to(2) == 0 ? up_to(100 << 20) : giwa::max_int64;
    const split_shape shape = shape_of_splits(work, latent_splits(work, blocks), available);
    const int64 bytes = workspace_bytes_of(shape, work.columns), leaves = work.tile_leaves;
    more_bytes += bytes <= giwa::workspace_bytes(p, {.multiprocessors = blocks}) && bytes <= available ? 0 : 1;
    // Every head of keys of the walk is a tile of rows.
    const int64 row_tiles = work.kv_heads / p.kv_heads;
    row_tile_params<int> params{};
    params.row_tiles = static_cast<int>(row_tiles);
    std::set<std::pair<int, int>> tiles;
    for (int head = 0; head < work.kv_heads; ++head) {
      few_rows_work_tile tile{};
      tile.head = head;
      tile = params.placed(tile);
      if (tile.head < p.kv_heads && tile.row_tile * latent_wide_rows < p.queries * (p.heads / p.kv_heads))
        tiles.insert({tile.head, tile.row_tile});
    }
    missed += static_cast<int64>(tiles.size()) == work.kv_heads ? 0 : 1;
    missed += row_tiles * latent_wide_rows >= p.queries * (p.heads / p.kv_heads) ? 0 : 1;
    if (shape.slots == 0) continue;
    // What splits of a column hand on of its work tiles, each of which begins at a multiple of `leaves`.
    const int64 total = p.sequences * shape.heads_in_column * leaves, length = shape.length_of(total);
    for (int64 split = 0; split < shape.splits && split * length < total; ++split)
      for (int64 at = split * length; at < (split + 1) * length && at < total;) {
        const int64 first = at / leaves * leaves, stop = std::min({first + leaves, (split + 1) * length, total});
        const bool begins = at == first;
        // The others of a divided tile are where the merge looks for them: each leaf of a later split once.
        if (begins && stop < first + leaves) {
          const ordered_partials handed(first, static_cast<int>(leaves), split, length);
          int64 expected = stop;
          misplaced += handed.position_of(0).split == split && handed.position_of(0).number == 0 ? 0 : 1;
          for (int k = 1; k < handed.count; ++k, ++expected) {
            const auto found = handed.position_of(k);
            misplaced += found.split == expected / length && found.number == expected % length ? 0 : 1;
            too_many += found.number < shape.slots ? 0 : 1;
          }
          misplaced += expected == first + leaves ? 0 : 1, ++divided;
        }
        at = stop;
      }
  }
  CHECK(missed == 0);
  CHECK(too_many == 0);
  CHECK(misplaced == 0);
  CHECK(more_bytes == 0);
  CHECK(divided > 1000);
}
