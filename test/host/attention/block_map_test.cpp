// SPDX-License-Identifier: MIT
// Masks from data on the CPU: maps from every source against loops over their scores, what block_sparse says of tiles, attention
// with it against the same mask as a formula, its refusals; and masks that read bits.
#include <giwa/attention/work/visible_tiles.hpp>
#include <giwa/host.hpp>

#include <limits>

#include "host/attention/block_map_cases.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::attention_coord;
using giwa::block_map;
using giwa::score_tile;
using giwa::status;
using giwa::tile_keep;

namespace {

/// Makes maps on the CPU.
struct on_host {
  template <class Source>
  status operator()(const Source& source, const block_map& map) const {
    return make_block_map(giwa::host, source, map);
  }
};

/// `none` and `all` are true of every score; returns how often `some` was said of a tile that is one of them.
template <class Mask>
int wrong_or_vague(const Mask& mask, int queries, int keys, int offset, int& vague) {
  int wrong = 0;
  for (int q = 0; q < queries; ++q)
    for (int last_q = q; last_q < queries; ++last_q)
      for (int k = 0; k < keys; ++k)
        for (int last_k = k; last_k < keys; ++last_k) {
          int kept = 0, all = 0;
          for (int i = q; i <= last_q; ++i)
            for (int j = k; j <= last_k; ++j, ++all) kept += mask(attention_coord{1, 1, i, j, i + offset}) ? 1 : 0;
          const tile_keep right = kept == 0 ? tile_keep::none : kept == all ? tile_keep::all : tile_keep::some;
          const tile_keep said = giwa::detail::classify(mask, score_tile{1, 1, q, last_q, k, last_k, offset});
          if (said == right) continue;
          ++(said == tile_keep::some ? vague : wrong);
        }
  return wrong;
}

/// classify() is right for a tile of a kernel, and says `all` of a range whose first keys are visible.
struct knows_tiles {
  bool operator()(attention_coord c) const { return c.key < 512; }
  tile_keep classify(const score_tile& t) const { return t.first_key < 512 ? tile_keep::all : tile_keep::none; }
};

/// A mask of which nothing but its scores is asked.
template <class Mask>
struct score_by_score {
  Mask mask;
  bool operator()(attention_coord c) const { return mask(c); }
};

}  // namespace

// Without other words a map holds for all sequences and heads.
static_assert(block_map{}.batch == 1 && block_map{}.heads == 1 && block_map{}.words == nullptr);

TEST_CASE("a map holds the blocks of its source") { CHECK(block_map_failures(on_host{}) == ""); }

TEST_CASE("block_sparse says of tiles what it says of their scores") {
  block_problem p{.batch = 2, .heads = 2, .queries = 11, .keys = 13, .block_queries = 4, .block_keys = 2};
  for (const bool by_keys : {false, true}) {
    p.by_keys = by_keys;
    block_case c(p, 5);
    REQUIRE(make_block_map(giwa::host, c.lists(), c.map).ok());
    int vague = 0;
    CHECK(wrong_or_vague(giwa::block_sparse{c.map}, p.queries, p.keys, 0, vague) == 0);
    CHECK(vague == 0);  // without another mask each answer is exact
    CHECK(wrong_or_vague(giwa::block_sparse{c.map, giwa::causal::bottom_right}, p.queries, p.keys, 2, vague) == 0);
    CHECK(wrong_or_vague(giwa::block_sparse{c.map, giwa::causal::bottom_right} & giwa::sliding_window{3}, p.queries,
                         p.keys, 2, vague) == 0);
    CHECK(wrong_or_vague(either(!giwa::block_sparse{c.map}, giwa::prefix{3}), p.queries, p.keys, 0, vague) == 0);
  }
}

// A mask that keeps all has no blocks to skip.
using only_blocks = decltype(giwa::block_sparse{giwa::block_map{}});
static_assert(giwa::mask_traits<decltype(only_blocks{} & giwa::full{})>::has_blocks);
static_assert(!giwa::mask_traits<decltype(only_blocks{} | giwa::full{})>::has_blocks);

TEST_CASE("bits of 32 tiles say what is said of each tile") {
  int wrong = 0, known = 0;
  const auto compare = [&](const auto& mask, auto axis, int queries, int keys, bool exact) {
    using mask_type = std::remove_cvref_t<decltype(mask)>;
    static_assert(giwa::mask_traits<mask_type>::finds_visible);
    giwa::detail::head_place head{};
    head.batch = 1, head.head = 1;
    head.query_count = queries, head.key_count = keys, head.offset = keys - queries;
    const int across = axis() == giwa::detail::tile_axis::keys ? queries : keys;
    for (const int size : {1, 2, 3, 4, 8, 16, 64, 256})
      for (int first = 0; first < across; first += 5) {
        const giwa::detail::visible_tiles<mask_type, axis()> list(mask, head, first, 7, size);
        for (int n = 0; n < list.count(); ++n) {
          const giwa::tile_bits bits = list.visible_from(n);
          for (int i = 0; i < 32 && n + i < list.count(); ++i) {
            const bool visible = (bits.visible >> i & 1) != 0, full = (bits.full >> i & 1) != 0;
            const tile_keep keep = list.visible_by_mask(n + i);
            wrong += (full && keep != tile_keep::all) || (!visible && keep != tile_keep::none) || (full && !visible);
            // A tile that ends after the map is not full.
            const bool ends = (n + i + 1) * size <= (axis() == giwa::detail::tile_axis::keys ? keys : queries);
            const bool answers = (size & (size - 1)) == 0 && size <= 64;
            if (exact && answers)
              wrong += visible != (keep != tile_keep::none) || (ends && full != (keep == tile_keep::all));
            known += visible ? 0 : 1;
          }
        }
      }
  };
  using axes = giwa::detail::tile_axis;
  constexpr std::integral_constant<axes, axes::keys> keys{};
  constexpr std::integral_constant<axes, axes::queries> queries{};
  for (const float density : {0.f, 0.05f, 0.3f, 0.95f}) {
    block_problem p{
        .batch = 2, .heads = 2, .queries = 93, .keys = 213, .block_queries = 4, .block_keys = 2, .density = density};
    block_case c(p, 5);
    REQUIRE(make_block_map(giwa::host, c.lists(), c.map).ok());
    const auto both = [&](const auto& mask, bool exact) {
      compare(mask, keys, p.queries, p.keys, exact);
      compare(mask, queries, p.queries, p.keys, exact);
    };
    both(giwa::block_sparse{c.map}, true);
    both(giwa::block_sparse{c.map, giwa::causal::bottom_right}, false);
    both(giwa::block_sparse{c.map} & giwa::causal::bottom_right, false);
    both(giwa::sliding_window{40, giwa::alignment::bottom_right} & giwa::block_sparse{c.map}, false);
    // Heads with more queries and keys than the map, and with fewer.
    compare(giwa::block_sparse{c.map}, keys, p.queries + 9, p.keys + 70, false);
    compare(giwa::block_sparse{c.map}, queries, p.queries - 9, p.keys - 70, false);
    c.map.by_keys = false;
    CHECK(giwa::block_sparse{c.map}.visible_queries({1, 1, 0, 10, 0, 0, 0}, 4).visible == ~0u);
  }
  CHECK(wrong == 0);
  CHECK(known > 1000);
}

TEST_CASE("masks of blocks say of how many queries") {
  const giwa::block_map of_64{.queries = 100, .keys = 100, .block_queries = 64},
      of_128{.queries = 100, .keys = 100, .block_queries = 128};
  const auto queries = [](const auto& mask) {
    static_assert(giwa::mask_traits<std::remove_cvref_t<decltype(mask)>>::has_blocks);
    return giwa::mask_traits<std::remove_cvref_t<decltype(mask)>>::queries_of_block(mask);
  };
  CHECK(queries(giwa::block_sparse{of_64}) == 64);
  CHECK(queries(giwa::block_sparse{of_128, giwa::block_sparse{of_64}}) == 64);
  CHECK(queries(giwa::causal{} & giwa::block_sparse{of_128}) == 128);
  CHECK(queries(giwa::block_sparse{of_128} | giwa::block_sparse{of_64}) == 64);
  CHECK(queries(!giwa::block_sparse{of_64}) == 64);
  CHECK_FALSE(giwa::mask_traits<decltype(giwa::prefix{3} | giwa::causal{})>::has_blocks);
}

/// A mask of blocks that does not say of how many keys.
struct rows_of_blocks {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const { return c.query / 8 % 2 == c.key % 2; }
  GIWA_HOST_DEVICE int queries_of_block() const { return 8; }
};

TEST_CASE("masks of blocks say of how many keys") {
  const giwa::block_map of_64{.queries = 100, .keys = 100, .block_queries = 256, .block_keys = 64},
      of_128{.queries = 100, .keys = 100, .block_queries = 32, .block_keys = 128};
  const auto keys = [](const auto& mask) {
    return giwa::mask_traits<std::remove_cvref_t<decltype(mask)>>::keys_of_block(mask);
  };
  CHECK(keys(giwa::block_sparse{of_64}) == 64);
  CHECK(keys(giwa::block_sparse{of_128, giwa::block_sparse{of_64}}) == 64);
  CHECK(keys(giwa::causal{} & giwa::block_sparse{of_128}) == 128);
  CHECK(keys(giwa::block_sparse{of_128} | giwa::block_sparse{of_64}) == 64);
  CHECK(keys(!giwa::block_sparse{of_128}) == 128);
  CHECK(keys(rows_of_blocks{}) == 1);
  CHECK(keys(giwa::mask_not<rows_of_blocks>{}) == 1);
  CHECK(keys(rows_of_blocks{} & giwa::block_sparse{of_128}) == 1);
  CHECK(keys(giwa::causal{}) == std::numeric_limits<int>::max());
}

TEST_CASE("the parts of a map hold what the map holds") {
  for (const block_problem& p :
       {block_problem{
            .batch = 2, .heads = 3, .queries = 37, .keys = 90, .block_queries = 4, .block_keys = 8, .density = 0.04f},
        block_problem{.queries = 8, .keys = 9, .block_queries = 1, .block_keys = 16, .density = 0.3f},
        block_problem{.queries = 3, .keys = 5, .block_queries = 2, .block_keys = 1}, block_problem{}}) {
    block_case c(p, 51);
    REQUIRE(make_block_map(giwa::host, c.lists(), c.map).ok());
    const giwa::visible_parts parts = parts_of(c.map);
    CHECK(parts.check({}).ok());
    giwa::uint64 right = 0;
    for (int b = 0; b < p.batch; ++b)
      for (int h = 0; h < p.heads; ++h)
        for (int q = 0; q < p.queries; ++q)
          for (int k = 0; k < p.keys; ++k)
            if (giwa::block_sparse{c.map}(attention_coord{b, h, q, k, q}))
              right |= giwa::uint64{1} << (8 * (q / parts.queries) + k / parts.keys);
    CHECK(parts.bits == right);
    int vague = 0;
    if (p.queries < 10) CHECK(wrong_or_vague(parts, p.queries, p.keys, 0, vague) == 0);
    CHECK(vague == 0);
  }
  CHECK(!giwa::visible_parts{1, 0, 1}.check({}).ok());
}

TEST_CASE("blocks past the map are not visible") {
  block_case c({.queries = 10, .keys = 10, .block_queries = 4, .block_keys = 4}, 1);
  REQUIRE(make_block_map(giwa::host, giwa::full{}, c.map).ok());
  const giwa::block_sparse mask{c.map};
  CHECK(mask(attention_coord{0, 0, 9, 9, 9}));
  CHECK_FALSE(mask(attention_coord{0, 0, 10, 0, 10}));
  CHECK_FALSE(mask(attention_coord{0, 0, 0, 10, 0}));
  CHECK(mask.classify({0, 0, 0, 9, 0, 9, 0}) == tile_keep::all);
  CHECK(mask.classify({0, 0, 0, 10, 0, 9, 0}) == tile_keep::some);
  CHECK(mask.classify({0, 0, 0, 9, 0, 11, 0}) == tile_keep::some);
  CHECK(mask.classify({0, 0, 10, 11, 0, 9, 0}) == tile_keep::none);
  CHECK(mask.classify({0, 0, 0, 9, 10, 10, 0}) == tile_keep::none);
}

TEST_CASE("a range of a long row is counted by two words") {
  block_case c({.queries = 64, .keys = 40000, .block_queries = 64, .block_keys = 1}, 3);
  REQUIRE(make_block_map(giwa::host, c.lists(), c.map).ok());
  const giwa::philox random(9);
  for (int i = 0; i < 2000; ++i) {
    const int first = static_cast<int>(random.uniform<float>(2 * i) * 39999),
              end = first + static_cast<int>(random.uniform<float>(2 * i + 1) * static_cast<float>(40000 - first));
    int visible = 0, full = 0;
    for (int k = first; k < end; ++k) visible += c.at(0, 0, 0, k) != 0 ? 1 : 0, full += c.at(0, 0, 0, k) == 2 ? 1 : 0;
    const auto n = c.map.count(0, 0, 0, 1, first, end);
    if (n.visible != visible || n.full != full) FAIL("blocks " << first << " to " << end);
  }
}

TEST_CASE("entries of lists that are out of range are counted and left out") {
  block_case c({.queries = 20, .keys = 40, .block_queries = 4, .block_keys = 4}, 2);
  std::vector<int> counts{3, -2, 9, 0, 2}, indices{0, 10, 3, 9, 9, 9, -1, 2, 1 << 30, 5, 5, 5, 4, 4, 7};
  int errors = 100;
  c.map.errors = &errors;
  const giwa::block_list list{giwa::tensor_view<const int, 3>(counts.data(), {1, 1, 5}),
                              giwa::tensor_view<const int, 4>(indices.data(), {1, 1, 5, 3})};
  REQUIRE(make_block_map(giwa::host, giwa::block_lists{.full = list}, c.map).ok());
  CHECK(errors == 100 + 1 + 1 + 3);  // 10; -2; 9 of 3, -1 and 2^30
  const giwa::uint32 right[] = {1u | 8u, 0, 4u, 0, 16u};
  for (int r = 0; r < 5; ++r) CHECK(c.map.row(0, 0, r)[0].full == right[r]);

  errors = 0;
  std::vector<int> offsets{0, 2, 1, 15, 16, 16};
  const giwa::block_rows rows{giwa::tensor_view<const int, 3>(offsets.data(), {1, 1, 6}),
                              giwa::tensor_view<const int, 1>(indices.data(), {15})};
  REQUIRE(make_block_map(giwa::host, rows, c.map).ok());
  CHECK(errors == 1 + 1 + 3 + 1 + 1);  // 10; 2 to 1; 10, -1 and 2^30; 15 to 16; 16 to 16
  const giwa::uint32 of_rows[] = {1u, 0, 8u | 512u | 4u | 32u | 16u | 128u, 0, 0};
  for (int r = 0; r < 5; ++r) CHECK(c.map.row(0, 0, r)[0].visible == of_rows[r]);

  const giwa::block_rows short_rows{giwa::tensor_view<const int, 3>(offsets.data(), {1, 1, 5}), rows.indices};
  CHECK(std::string(giwa::format_status(make_block_map(giwa::host, short_rows, c.map)).c_str()).find("`offsets`") !=
        std::string::npos);
}

TEST_CASE("attention with a map is attention with the same mask as a formula") {
  CHECK(block_sparse_attention_failures(on_host{}) == "");
}

TEST_CASE("the greatest scores of a row, with ties, NaN and infinity") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> scores{1, nan, -0.0f, 0, inf, -inf, 2, 2, 2, -3};
  const giwa::tensor_view<const float, 4> view(scores.data(), {1, 1, 1, 10});
  block_case c({.queries = 1, .keys = 10, .block_queries = 1, .block_keys = 1}, 1);
  const auto bits = [&](const auto& source) {
    REQUIRE(make_block_map(giwa::host, source, c.map).ok());
    return c.map.row(0, 0, 0)[0].visible;
  };
  const giwa::uint32 right[] = {0, 16, 16 | 64, 16 | 64 | 128, 16 | 64 | 128 | 256, 1 | 16 | 64 | 128 | 256};
  for (int n = 0; n < 6; ++n) CHECK(bits(giwa::score_top{view, n}) == right[n]);
  CHECK(bits(giwa::score_top{view, 6}) == (right[5] | 4));  // of the two zeros the first
  CHECK(bits(giwa::score_top{view, 9}) == (0x3ffu & ~2u));  // all but NaN
  CHECK(bits(giwa::score_top{view, 2147483647}) == (0x3ffu & ~2u));
  CHECK(bits(giwa::score_threshold{view, 0}) == (right[5] | 4 | 8));
  CHECK(bits(giwa::score_threshold{view, -inf}) == (0x3ffu & ~2u));
  CHECK(bits(giwa::score_threshold{view, nan}) == 0);
}

TEST_CASE("what make_block_map and block_sparse refuse") {
  block_case c({.batch = 2, .heads = 3, .queries = 20, .keys = 40, .block_queries = 4, .block_keys = 4}, 2);
  const auto lists = c.lists();
  const auto message = [&](const auto& source, auto change) {
    block_map map = c.map;
    change(map);
    return std::string(giwa::format_status(make_block_map(giwa::host, source, map)).c_str());
  };
  const auto keep = [](block_map&) {};
  CHECK(message(lists, keep) == "giwa: success");
  CHECK(message(lists, [](block_map& m) { m.words = nullptr; }) ==
        "giwa: invalid argument `block_map`: words is null: it must point to bytes() bytes");
  CHECK(message(lists, [](block_map& m) { m.batch = 0; }) ==
        "giwa: invalid argument `block_map`: batch must be at least 1 (at least 1, got 0)");
  CHECK(message(lists, [](block_map& m) { m.heads = -1; }) ==
        "giwa: invalid argument `block_map`: heads must be at least 1 (at least 1, got -1)");
  CHECK(message(lists, [](block_map& m) { m.queries = -1; }) ==
        "giwa: invalid argument `block_map`: queries must not be negative (at least 0, got -1)");
  CHECK(message(lists, [](block_map& m) { m.keys = -4; }) ==
        "giwa: invalid argument `block_map`: keys must not be negative (at least 0, got -4)");
  CHECK(message(lists, [](block_map& m) { m.keys = 2147483647; }) ==
        "giwa: invalid argument `block_map`: queries and keys are limited to what the calls of attention take (at most "
        "2147479551, got "
        "2147483647)");
  CHECK(message(lists, [](block_map& m) { m.block_keys = 12; }) ==
        "giwa: invalid argument `block_map`: block_queries and block_keys must be powers of two");
  CHECK(message(lists, [](block_map& m) { m.block_queries = 0; }) ==
        "giwa: invalid argument `block_map`: block_queries and block_keys must be powers of two");
  CHECK(message(lists,
                [](block_map& m) {
                  m.words = reinterpret_cast<giwa::block_word*>(reinterpret_cast<char*>(m.words) + 8);
                }) ==
        "giwa: invalid argument `block_map`: the pointer must be aligned to its element type, in bytes (at least 16, "
        "got 8)");
  CHECK(message(lists, [](block_map& m) { m.heads = 1; }) ==
        "giwa: invalid argument `full.counts`: the view must have the heads of the map (exactly 1, got 3)");
  CHECK(message(lists, [](block_map& m) { m.queries = 30; }) ==
        "giwa: invalid argument `full.counts`: the view must have the rows of the map (exactly 8, got 5)");
  auto other = lists;
  other.partial.indices = giwa::tensor_view<const int, 4>(lists.partial.indices.data(), {2, 3, 4, 2});
  CHECK(message(other, keep) ==
        "giwa: invalid argument `partial.indices`: the view must have the rows of the map (exactly 5, got 4)");
  other = lists;
  other.partial.counts = {};
  CHECK(message(other, keep) == "giwa: invalid argument `partial.counts`: there are indices, but no counts");
  CHECK(message(lists, [](block_map& m) { m.errors = reinterpret_cast<int*>(m.words) + 5; }) ==
        "giwa: invalid argument `errors`: errors overlaps words");
  CHECK(message(lists, [](block_map& m) {
          m.errors = reinterpret_cast<int*>(reinterpret_cast<char*>(m.words) - 6);
        }).find("errors") != std::string::npos);
  other = lists;
  other.full.counts = giwa::tensor_view<const int, 3>(reinterpret_cast<const int*>(c.map.words), {2, 3, 5});
  CHECK(message(other, keep) == "giwa: invalid argument `block_map`: words overlaps the source");
  CHECK(message(giwa::tensor_view<const bool, 4>(nullptr, {2, 3, 20, 40}), keep) ==
        "giwa: invalid argument `source`: the pointer must not be null if the view has elements");
  CHECK(message(giwa::score_top{c.score_view(), -1}, keep) ==
        "giwa: invalid argument `count`: the number of blocks is negative (at least 0, got -1)");
  CHECK(message(giwa::causal{}, keep).find("the diagonal must be chosen") != std::string::npos);
  CHECK(message(giwa::sliding_window{-1}, keep).find("a window's number of keys is negative") != std::string::npos);

  REQUIRE(make_block_map(giwa::host, lists, c.map).ok());
  const auto refusal = [&](giwa::attention_sizes s, auto change) {
    giwa::block_sparse mask{c.map, giwa::sliding_window{2}};
    change(mask);
    return std::string(giwa::format_status(mask.check(s)).c_str());
  };
  const auto none = [](auto&) {};
  CHECK(refusal({2, 3, 20, 40}, none) == "giwa: success");
  CHECK(refusal({2, 3, -1, -1}, none) == "giwa: success");  // packed
  CHECK(refusal({7, 9, 20, 40}, [](auto& m) { m.map.batch = m.map.heads = 1; }) == "giwa: success");
  CHECK(refusal({3, 3, 20, 40}, none) ==
        "giwa: invalid argument `block_map`: the map must have the batch of q, or 1 (exactly 3, got 2)");
  CHECK(refusal({2, 4, 20, 40}, none) ==
        "giwa: invalid argument `block_map`: the map must have the heads of q, or 1 (exactly 4, got 3)");
  CHECK(refusal({2, 3, 21, 40}, none) ==
        "giwa: invalid argument `block_map`: the map must have as many queries as q (exactly 21, got 20)");
  CHECK(refusal({2, 3, 20, 41}, none) ==
        "giwa: invalid argument `block_map`: the map must have as many keys as k (exactly 41, got 40)");
  CHECK(refusal({2, 3, 20, 40}, [](auto& m) { m.map.words = nullptr; }).find("words is null") != std::string::npos);
  CHECK(refusal({2, 3, 20, 40}, [](auto& m) { m.inner.count = -1; }).find("negative") != std::string::npos);
}

TEST_CASE("maps without rows or columns") {
  block_case no_rows({.queries = 0, .keys = 100, .block_queries = 4, .block_keys = 4}, 1);
  REQUIRE(make_block_map(giwa::host, giwa::full{}, no_rows.map).ok());
  for (int c = 0; c < 25; ++c) CHECK(no_rows.map.column(0, 0, c)[0].visible == 0);
  block_case no_columns({.queries = 5, .keys = 0, .block_queries = 4, .block_keys = 4}, 1);
  REQUIRE(make_block_map(giwa::host, giwa::full{}, no_columns.map).ok());
  for (int r = 0; r < 2; ++r) CHECK(no_columns.map.row(0, 0, r)[0].visible == 0);
}

TEST_CASE("a block that is larger than a tile, and a mask that knows tiles alone") {
  block_case c({.queries = 16, .keys = 1536, .block_queries = 16, .block_keys = 2048}, 1);
  REQUIRE(make_block_map(giwa::host, knows_tiles{}, c.map).ok());
  CHECK(c.map.row(0, 0, 0)[0].visible == 1);
  CHECK(c.map.row(0, 0, 0)[0].full == 0);
}

TEST_CASE("counts of more blocks than an int holds") {
  // Words of all rows in one, so that 2^32 blocks need little memory.
  std::vector<giwa::block_word> words((std::size_t{1} << 19) + 1);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto before = static_cast<giwa::uint32>(32 * i), all = i + 1 < words.size() ? ~0u : 0u;
    words[i] = {all, before, all, before};
  }
  giwa::block_map map{words.data(), 1, 1, 1, 1 << 24, 1, 1, false};
  giwa::block_map::counts sum;
  for (int r = 0; r < 256; ++r) {
    const auto n = map.count(0, 0, 0, 1, 0, 1 << 24);
    sum.visible += n.visible, sum.full += n.full;
  }
  CHECK(sum.visible == giwa::int64{1} << 32);
  CHECK(sum.full == giwa::int64{1} << 32);
}

TEST_CASE("attention with trees, packed bits and short blocks, and attention to a cache with them") {
  constexpr giwa::int64 batch = 2, queries = 37, keys = 150, heads = 2, size = 16;
  const giwa::philox random(5);
  std::vector<float> q(batch * queries * heads * size), k(batch * keys * heads * size), v(k.size()), o(q.size()),
      right(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = 2 * random.uniform<float>(i) - 1;
  for (std::size_t i = 0; i < k.size(); ++i)
    k[i] = 2 * random.uniform<float>(i + 99999) - 1, v[i] = 2 * random.uniform<float>(i + 300000) - 1;
  std::vector<giwa::uint64> drafts(batch * queries);
  for (std::size_t i = 0; i < drafts.size(); ++i)
    drafts[i] = (static_cast<giwa::uint64>(random.uniform<float>(i + 7) * 1e9f) << 20 | i) & 0x1fffffffff;
  std::vector<unsigned char> bits(batch * (queries * keys / 8 + 1));
  for (std::size_t i = 0; i < bits.size(); ++i)
    bits[i] = static_cast<unsigned char>(random.uniform<float>(i + 5000) * 256);
  const std::vector<int> of_keys{keys, keys}, of_blocks{3, 16, 0, 7, 16, 1, 16, 2, 16, 3}, lengths{keys, keys};
  const giwa::index<4> of_q{batch, queries, heads, size}, of_k{batch, keys, heads, size};
  const giwa::tensor_view<const float, 4> query(q.data(), of_q), key(k.data(), of_k), value(v.data(), of_k);
  block_case c(
      {.batch = 1, .heads = 2, .queries = queries, .keys = keys, .block_queries = 8, .block_keys = 16, .density = 0.3f},
      4);
  REQUIRE(make_block_map(giwa::host, c.lists(), c.map).ok());
  const auto check = [&](const auto& mask) {
    const giwa::attention_options options{.align = giwa::alignment::bottom_right};
    REQUIRE(attention_reference(giwa::host, query, key, value, giwa::tensor_view<float, 4>(right.data(), of_q),
                                score_by_score{mask}, giwa::plain_score{}, options)
                .ok());
    REQUIRE(giwa::attention_forward<size>(giwa::host, query, key, value, giwa::tensor_view<float, 4>(o.data(), of_q),
                                          mask, giwa::plain_score{}, options)
                .ok());
    for (std::size_t i = 0; i < o.size(); ++i)
      if (!(distance_of(o[i], right[i]) < 2e-5f)) FAIL("attention_forward: element " << i);
    std::fill(o.begin(), o.end(), 7.f);
    giwa::kv_cache<const float> cache{.k = key, .v = value};
    cache.lengths = lengths.data();
    REQUIRE(
        giwa::attention_cached<size>(giwa::host, cache, query, giwa::tensor_view<float, 4>(o.data(), of_q), mask).ok());
    for (std::size_t i = 0; i < o.size(); ++i)
      if (!(distance_of(o[i], right[i]) < 2e-5f)) FAIL("attention_cached: element " << i);
  };
  check(giwa::tree{.bits = drafts.data(), .stride = queries});
  check(giwa::packed_bits{.bits = bits.data(), .keys = of_keys.data(), .stride = queries * keys / 8 + 1});
  check(giwa::block_lengths{.lengths = of_blocks.data(), .block_keys = 16});
  check(giwa::block_sparse{c.map, giwa::causal::bottom_right});
  check(giwa::block_sparse{c.map} & giwa::block_lengths{.lengths = of_blocks.data(), .block_keys = 16});
}

TEST_CASE("a tree keeps all keys before the drafts, and the drafts that bits name") {
  // 5 drafts after 4 keys: 0 is the root, 1 and 2 follow it, 3 follows 1, 4 follows 2.
  const std::vector<giwa::uint64> bits{1, 3, 5, 11, 21, 1, 3, 7, 15, 31};
  const giwa::tree mask{bits.data(), 1, 5};
  for (int sequence = 0; sequence < 2; ++sequence)
    for (int query = 0; query < 5; ++query)
      for (int key = 0; key < 9; ++key) {
        const bool right = key < 4 || (bits[5 * sequence + query] >> (key - 4) & 1) != 0;
        CHECK(mask(attention_coord{sequence, 0, query, key, query + 4}) == right);
      }
  int vague = 0;
  CHECK(wrong_or_vague(mask, 5, 9, 4, vague) == 0);
  CHECK(mask.classify({0, 0, 0, 4, 0, 3, 4}) == tile_keep::all);
  CHECK(mask.classify({0, 0, 0, 4, 0, 4, 4}) == tile_keep::some);
  // 70 drafts take two words; those past the words are not kept.
  std::vector<giwa::uint64> wide(140, 0);
  wide[2 * 69 + 1] = 1u << 5;
  const giwa::tree two{wide.data(), 2};
  CHECK(two(attention_coord{0, 0, 69, 69, 69}));
  CHECK_FALSE(two(attention_coord{0, 0, 69, 68, 69}));
  CHECK_FALSE(giwa::tree{wide.data(), 1}(attention_coord{0, 0, 34, 64, 34}));
  CHECK(giwa::tree{wide.data(), 1}.classify({0, 0, 0, 69, 64, 69, 0}) == tile_keep::none);
  CHECK(giwa::tree{nullptr}.check({1, 1, 5, 9}).message == std::string("a pointer is null"));
  CHECK(giwa::tree{bits.data(), -1}.check({1, 1, 5, 9}).message == std::string("the number of words is negative"));
  CHECK(mask.check({1, 1, 5, 9}).ok());
}

TEST_CASE("packed bits, one for each query and key") {
  // Two sequences of 3 x 5 and 2 x 11 keys, from bytes 0 and 2 on.
  const std::vector<unsigned char> bits{0b10110101, 0b01011100, 0b11100010, 0b00110101, 0b00101101};
  const std::vector<int> keys{5, 11}, offsets{0, 2};
  const giwa::packed_bits mask{bits.data(), keys.data(), nullptr, offsets.data()},
      strided{bits.data(), keys.data(), nullptr, nullptr, 2};
  for (int sequence = 0; sequence < 2; ++sequence)
    for (int query = 0; query < 3 - sequence; ++query)
      for (int key = 0; key < 12; ++key) {
        const int bit = query * keys[sequence] + key;
        const bool right = key < keys[sequence] && (bits[2 * sequence + bit / 8] >> bit % 8 & 1) != 0;
        CHECK(mask(attention_coord{sequence, 7, query, key, 0}) == right);
        CHECK(strided(attention_coord{sequence, 7, query, key, 0}) == right);
      }
  CHECK(mask.classify({}) == tile_keep::some);
  CHECK(mask.check({2, 1, 3, 5}).ok());
  const std::vector<int> queries{3, 1};
  const giwa::packed_bits limited{bits.data(), keys.data(), queries.data(), offsets.data()};
  CHECK(limited(attention_coord{1, 0, 0, 0, 0}) == mask(attention_coord{1, 0, 0, 0, 0}));
  for (int key = 0; key < 11; ++key) CHECK_FALSE(limited(attention_coord{1, 0, 1, key, 0}));
  CHECK(giwa::packed_bits{bits.data(), nullptr}.check({2, 1, 3, 5}).message == std::string("a pointer is null"));
  CHECK(giwa::packed_bits{nullptr, keys.data()}.check({2, 1, 3, 5}).message == std::string("a pointer is null"));
}

TEST_CASE("masks say of 32 keys at once what they say of each") {
  constexpr int queries = 7, keys = 211;
  const auto word = [](std::size_t i) { return giwa::uint64{giwa::philox(6)(i).word[0]}; };
  const auto wrong = [](const auto& mask, int offset) {
    static_assert(giwa::mask_traits<std::remove_cvref_t<decltype(mask)>>::has_key_bits);
    int count = 0;
    for (int sequence = 0; sequence < 2; ++sequence)
      for (int head = 0; head < 2; ++head)
        for (int query = 0; query < queries; ++query)
          for (int key = 0; key < keys; ++key) {
            const giwa::uint32 bits = mask.key_bits(attention_coord{sequence, head, query, key, query + offset});
            for (int i = 0; i < 32 && key + i < keys; ++i)
              count += (bits >> i & 1) != mask(attention_coord{sequence, head, query, key + i, query + offset});
          }
    return count;
  };
  std::vector<giwa::uint64> drafts(2 * queries * 2);
  for (std::size_t i = 0; i < drafts.size(); ++i) drafts[i] = word(i) << 32 | word(i + 1000);
  for (const int offset : {0, 60, 100, 150, keys - queries})
    for (const int words : {1, 2}) CHECK(wrong(giwa::tree{drafts.data(), words, queries * words}, offset) == 0);
  CHECK(wrong(giwa::tree{nullptr, 0}, 20) == 0);
  const int of_sequences[] = {keys, 93}, of_queries[] = {queries, 5};
  std::vector<unsigned char> bits((2 * queries * keys + 7) / 8);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<unsigned char>(word(i));
  const giwa::int64 stride = queries * keys / 8;
  CHECK(wrong(giwa::packed_bits{.bits = bits.data(), .keys = of_sequences, .stride = stride}, 0) == 0);
  CHECK(wrong(giwa::packed_bits{bits.data(), of_sequences, of_queries, nullptr, stride}, 0) == 0);
  for (const int block : {1, 8, 32, 64, 256}) {
    block_case c({.batch = 2, .heads = 2, .queries = 6, .keys = 200, .block_queries = 2, .block_keys = block}, 8);
    REQUIRE(make_block_map(giwa::host, c.lists(), c.map).ok());
    CHECK(wrong(giwa::block_sparse{c.map}, 0) == 0);
  }
  static_assert(!giwa::mask_traits<giwa::block_sparse<giwa::causal>>::has_key_bits);
}

TEST_CASE("blocks with short ends") {
  const std::vector<int> lengths{4, 0, 2, 9, 1, 3, -1, 4, /* other heads */ 0, 0, 0, 0, 1, 2, 3, 4};
  const giwa::block_lengths mask{lengths.data(), 4, 0, 4};
  int vague = 0;
  CHECK(wrong_or_vague(mask, 2, 16, 0, vague) == 0);
  for (int head = 0; head < 4; ++head)
    for (int key = 0; key < 16; ++key)
      CHECK(mask(attention_coord{5, head, 0, key, 0}) == (key % 4 < lengths[4 * head + key / 4]));
  CHECK(mask.classify({0, 0, 0, 1, 0, 3, 0}) == tile_keep::all);
  CHECK(mask.classify({0, 0, 0, 1, 4, 7, 0}) == tile_keep::none);
  CHECK(giwa::block_lengths{lengths.data(), 3}.check({1, 1, 2, 16}).message ==
        std::string("block_keys must be a power of two"));
  CHECK(giwa::block_lengths{nullptr, 4}.check({1, 1, 2, 16}).message == std::string("a pointer is null"));
}
