// SPDX-License-Identifier: MIT
// The kernel for many rows: each row is in one tile, each work tile is found once, and splits fit into the workspace.
#include <giwa/attention/work/cached_workspace.hpp>
#include <giwa/grid/host_executor.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

using namespace giwa::detail;
using giwa::cached_problem;
using giwa::fp16;
using giwa::int64;

namespace {

struct call_sizes {
  int64 queries = 1, keys = 1, heads = 1, kv_heads = 1;
  std::vector<int> lengths{1};
  std::vector<int> offsets{};  // of packed queries; empty: not packed

  auto params() const {
    cached_views<fp16, fp16, fp16> a{};
    const int64 sequences = std::ssize(lengths);
    const bool packed = !offsets.empty();
    a.q = {nullptr, {packed ? 1 : sequences, packed ? offsets.back() : queries, heads, 128}};
    a.cache.k = a.cache.v = {nullptr, {sequences, keys, kv_heads, 128}};
    a.cache.lengths = lengths.data();
    if (packed) a.packed = {offsets.data(), sequences, queries};
    return cached_params_of(a, giwa::full{}, giwa::plain_score{}, giwa::cached_options{});
  }
};
using call_params = decltype(call_sizes{}.params());

/// Finds all work tiles by the lanes of a warp, as if `step` blocks did.
struct find_tiles_op {
  static constexpr int max_threads = 32, min_blocks = 1;
  struct params {
    call_params call;
    many_rows_shape shape;
    int64 step;
    bool* divides;
    std::vector<std::vector<int>>* found;  // sequence, head, tile of rows, split
  };
  using shared_storage = giwa::no_shared_storage;
  template <class Block>
  void operator()(Block block, const params& p, shared_storage&) const {
    for (int64 first = 0; first < p.step; ++first) {
      many_rows_walk<call_params> walk(p.call, p.shape);
      const bool divides = walk.divides(block);
      many_rows_walk<call_params>::position found;
      for (int64 i = first; walk.find(block, i, found); i += p.step) {
        const many_rows_work_tile tile =
            work_tile_of(p.shape, found.work, found.sequence.keys, divides, i - found.first);
        if (divides) REQUIRE(found.first + number_of(p.shape, found.work, tile.head, tile.row_tile, tile.split) == i);
        if (block.lane() == 0) p.found->push_back({found.sequence.batch, tile.head, tile.row_tile, tile.split});
      }
      if (block.lane() == 0) *p.divides = divides;
    }
  }
};

/// The work tiles, or splits, of all sequences, by adding up.
std::set<std::vector<int>> all_tiles(const call_params& p, const many_rows_shape& shape, bool divides) {
  std::set<std::vector<int>> all;
  for (int b = 0; b < p.views.sequence_count(); ++b) {
    const cached_sequence s = p.at(b);
    if (s.queries <= few_queries_of_sequence) continue;
    const many_rows_work w = work_of(shape, s);
    for (int head = 0; head < shape.kv_heads; ++head)
      for (int tile = 0; tile < w.row_tiles; ++tile)
        for (int split = 0; split < (divides ? w.splits : 1); ++split) all.insert({b, head, tile, split});
  }
  return all;
}

}  // namespace

TEST_CASE("every row of a group of heads is in one tile, and tiles have the rows of their queries") {
  int64 missed = 0, outside = 0;
  for (int group : {1, 2, 3, 5, 7, 8, 12, 33, 48, 64, 65, 67, 96, 100, 128})
    for (const int queries : {17, 63, 64, 65, 200}) {
      call_sizes sizes{.queries = queries, .keys = 100, .heads = 2 * group, .kv_heads = 2, .lengths = {100}};
      const call_params p = sizes.params();
      const many_rows_shape shape = shape_of_many_rows(p.views.problem(), 132, 0, queries % 2 == 0);
      const giwa::fast_divisor heads(shape.tile.heads);
      const cached_sequence s = p.at(0);
      std::vector<int> seen(static_cast<std::size_t>(queries * group));
      for (int tile = 0; tile < work_of(shape, s).row_tiles * shape.cluster; ++tile) {
        const query_range range = queries_of(shape, tile);
        for (int c = 0; c < shape.consumers; ++c) {
          const packed_rows rows = rows_of(p, shape, heads, s, 1, tile, c);
          for (int row = 0; row < rows.rows; ++row) {
            const int query = rows.query(row), head = rows.head(row) - group;
            outside += row < 64 && range.first <= query && query < range.first + range.count && head >= 0 ? 0 : 1;
            if (query < queries && head < group) ++seen[static_cast<std::size_t>(query * group + head)];
          }
        }
      }
      missed += std::count_if(seen.begin(), seen.end(), [](int n) { return n != 1; });
    }
  CHECK(missed == 0);
  CHECK(outside == 0);
}

TEST_CASE("the splits of a sequence depend on its queries and keys alone, and are 18 at most up to a million keys") {
  for (const int tile : {64, 96, 128})
    for (const int64 queries : {17, 128, 129, 512, 4096, 5000})
      for (const int64 keys : {1, 1000, 1025, 8192, 16383, 16384, 100000, 1 << 20}) {
        const int tiles = split_tiles_of(queries, keys, tile);
        CHECK((tiles > 0 && tiles * tile <= 1 << 16));
        CHECK(giwa::ceil_div(giwa::ceil_div(keys, tile), tiles) <= 18);
      }
  CHECK(split_tiles_of(64, 32768, 128) == 32);
  CHECK(split_tiles_of(1024, 8192, 128) == 64);
  for (const auto& [queries, longest] : {std::pair{128, 1024}, {129, 4096}, {512, 4096}, {513, 8192}, {4096, 8192}})
    CHECK(split_tiles_of(queries, 0, 64) == longest / 64);
  CHECK(split_tiles_of(4097, 0, 64) == (1 << 16) / 64);
}

TEST_CASE("keys of less than three splits are not divided, and need no workspace") {
  const auto slots_of = [](int64 keys) {
    const cached_problem p{
        .sequences = 1, .queries = 128, .keys = keys, .heads = 1, .kv_heads = 1, .head_size = 128, .head_size_v = 128};
    return shape_of_many_rows(p, 132, int64{64} << 20, false).slots;
  };
  const int64 split = int64{128} * split_tiles_of(128, 0, 128);
  CHECK((slots_of(1) == 0 && slots_of(2 * split) == 0));
  CHECK((slots_of(2 * split + 1) == 3 && slots_of(3 * split + 1) == 4));
}

TEST_CASE("two blocks share tiles of rows where their number is even and none is divided") {
  const auto shape_of = [](int64 queries, int blocks, bool pairs) {
    const cached_problem p{.sequences = 300,
                           .queries = queries,
                           .keys = 4096,
                           .heads = 1,
                           .kv_heads = 1,
                           .head_size = 128,
                           .head_size_v = 128};
    return shape_of_many_rows(p, blocks, 0, pairs);
  };
  const int rows = 64 * shape_of(256, 132, false).consumers;
  const auto even = shape_of(2 * rows, 132, true), odd = shape_of(3 * rows, 132, true);
  CHECK((even.cluster == 2 && even.blocks == 66));
  CHECK((odd.cluster == 1 && odd.blocks == 132));
  CHECK((shape_of(2 * rows, 132, false).cluster == 1 && shape_of(2 * rows, 1, true).cluster == 1));
  CHECK((shape_of(2 * rows, 2, true).cluster == 2 && shape_of(2 * rows, 2, true).blocks == 1));
}

TEST_CASE("the host does not know the sizes of packed queries, lengths and lists of pages") {
  cached_views<fp16, fp16, fp16> a{};
  const auto is_ragged = [&] {
    return cached_params_of(a, giwa::full{}, giwa::plain_score{}, giwa::cached_options{}).is_ragged();
  };
  const int numbers[] = {0, 1};
  a.q = {nullptr, {1, 20, 1, 128}};
  a.cache.k = a.cache.v = {nullptr, {1, 100, 1, 128}};
  CHECK_FALSE(is_ragged());
  a.cache.lengths = numbers;
  CHECK(is_ragged());
  a.cache.lengths = nullptr, a.cache.pages.offsets = numbers;
  CHECK(is_ragged());
  a.cache.pages.offsets = nullptr, a.packed = {numbers, 1, 20};
  CHECK(is_ragged());
}

TEST_CASE("work tiles of sequences of all kinds are found once, by any number of blocks") {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int divided = 0;
  for (int i = 0; i < 40; ++i) {
    call_sizes sizes{.queries = 17 + below(300), .keys = 1 + below(40000), .heads = 0, .kv_heads = 1 + below(9)};
    sizes.heads = sizes.kv_heads * (1 + below(12));
    sizes.lengths.clear();
    const int sequences = i % 5 == 0 ? 33 + below(70) : 1 + below(6);
    for (int b = 0; b < sequences; ++b) sizes.lengths.push_back(below(static_cast<int>(sizes.keys) + 2) - 1);
    if (i % 2 == 1) {
      sizes.offsets = {0};
      for (int b = 0; b < sequences; ++b) sizes.offsets.push_back(sizes.offsets.back() + below(i % 5 == 0 ? 20 : 400));
    }
    const call_params p = sizes.params();
    for (const int64 available : {giwa::max_int64, int64{0}}) {
      const many_rows_shape shape = shape_of_many_rows(p.views.problem(), 132, available, i % 3 == 0);
      const auto tiles = all_tiles(p, shape, false), splits = all_tiles(p, shape, true);
      bool divides = false;
      std::vector<std::vector<int>> found;
      REQUIRE(giwa::launch(giwa::host, {.grid = 1, .block = 32}, find_tiles_op{},
                           {p, shape, 1 + below(5), &divides, &found})
                  .ok());
      CHECK(found.size() == (divides ? splits : tiles).size());
      CHECK(std::set<std::vector<int>>(found.begin(), found.end()) == (divides ? splits : tiles));
      // With as much workspace as a call says that it uses, only the number of splits keeps work tiles from being divided.
      const bool few_tiles = std::ssize(tiles) * 4 <= 7 * shape.blocks && std::ssize(splits) <= 8 * shape.blocks;
      CHECK(divides == (available > 0 && few_tiles && splits.size() >= least_splits * tiles.size()));
      divided += divides ? 1 : 0;
    }
  }
  CHECK(divided > 5);
}

TEST_CASE("a slot has room for O, m and l of all rows, aligned to 16 bytes") {
  for (const int rows : {1, 2, 3, 16, 31, 128, 192})
    for (const int columns : {16, 64, 80, 256}) {
      const partial_slot slot{rows, columns};
      const giwa::int64 floats = partial_slot::floats(rows, columns);
      CHECK(floats % 4 == 0);
      CHECK((slot.output(0) == 0 && slot.output(rows) == slot.sums(0)));
      CHECK(slot.sums(0) % 4 == 0);
      CHECK((slot.sums(rows) <= floats && floats < slot.sums(rows) + 4));
      CHECK(slot_floats(rows, columns) >= slot.sums(rows) + 4);
    }
}

TEST_CASE("the workspace of a chunk of a long sequence") {
  constexpr cached_problem chunk{
      .sequences = 1, .queries = 64, .keys = 32768, .heads = 32, .kv_heads = 8, .head_size = 128, .head_size_v = 128};
  constexpr many_rows_shape shape = shape_of_many_rows(chunk, 132, giwa::max_int64, false);
  static_assert(shape.tile.heads == 4 && shape.tile.queries == 16 && shape.consumers == 2);
  static_assert(shape.slots == 2 * 8 * 18);  // two tiles of rows for each head of keys
  static_assert(giwa::workspace_bytes(chunk, {.multiprocessors = 132}) >= shape.slots * 4 * slot_floats(128, 128));
  cached_problem many = chunk;
  many.queries = 1024;  // more tiles than multiprocessors
  CHECK(shape_of_many_rows(many, 132, giwa::max_int64, false).slots == 0);
}

TEST_CASE("the workspace of packed queries is that of as many long sequences as the rows may have") {
  const auto slots = [](int64 rows) {
    const cached_problem p{.sequences = 4,
                           .queries = 64,
                           .rows = rows,
                           .keys = 8192,
                           .heads = 32,
                           .kv_heads = 8,
                           .head_size = 128,
                           .head_size_v = 128};
    return shape_of_many_rows(p, 132, giwa::max_int64, false).slots;
  };
  constexpr int64 least = few_queries_of_sequence + 1;  // of a sequence with many rows
  CHECK(slots(least - 1) < slots(least));
  CHECK(slots(least) == slots(2 * least - 2));
}
