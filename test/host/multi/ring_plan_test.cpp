// SPDX-License-Identifier: MIT
// Slices, masks on slices and the plan of a ring: laws over all ranks, rows and tiles of small sequences.
#include <giwa/attention/problem/data_masks.hpp>
#include <giwa/multi/ring_plan.hpp>

#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using namespace giwa_test;
using giwa::sequence_slices;
using giwa::slicing;
using giwa::tile_keep;
using giwa::token_range;
using giwa::token_slice;
using giwa::detail::ring_plan;
using giwa::detail::slice_mask;

namespace {

/// A token of a slice by its row.
int64 token(const token_slice& s, int64 row) {
  return row < s.ranges[0].count ? s.ranges[0].first + row : s.ranges[1].first + row - s.ranges[0].count;
}

struct wrong {
  int keeps = 0, classifies = 0, ranges = 0, plan = 0, loose = 0, checked = 0;
};

/// Whether the mask keeps a pair of tokens.
template <class Mask>
bool keeps(const Mask& mask, int offset, int64 query, int64 key) {
  return mask({1, 2, static_cast<int>(query), static_cast<int>(key), static_cast<int>(query) + offset});
}

template <class Mask>
void check_tiles(const Mask& mask, int offset, const slice_mask<Mask>& m, const token_slice& queries, int64 first_query,
                 const token_slice& keys, int64 first_key, wrong& w) {
  const int rows = static_cast<int>(queries.count() - first_query),
            columns = static_cast<int>(keys.count() - first_key);
  const auto kept = [&](int i, int j) {
    return keeps(mask, offset, token(queries, first_query + i), token(keys, first_key + j));
  };
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      const giwa::attention_coord c{1, 2, i, j, -99999};  // the diagonal of the call does not count
      ++w.checked;
      w.keeps += m(c) != kept(i, j);
      if constexpr (giwa::detail::one_range_mask<Mask>) {
        bool inside = true;
        if constexpr (giwa::detail::has_first_key<Mask>) inside = inside && j >= m.first_key({1, 2, i, 0, 0});
        if constexpr (giwa::detail::has_last_key<Mask>) inside = inside && j <= m.last_key({1, 2, i, 0, 0});
        w.ranges += inside != kept(i, j);
      }
      // The tile from here of 5 x 7, and the one to the end of the keys.
      for (const int width : {7, columns}) {
        const int last_i = i + 4 < rows ? i + 4 : rows - 1, last_j = j + width <= columns ? j + width - 1 : columns - 1;
        int count = 0;
        for (int a = i; a <= last_i; ++a)
          for (int b = j; b <= last_j; ++b) count += kept(a, b);
        const tile_keep said = giwa::detail::classify(m, {1, 2, i, last_i, j, last_j, -99999});
        w.classifies += (said == tile_keep::all && count != (last_i - i + 1) * (last_j - j + 1)) ||
                        (said == tile_keep::none && count != 0);
      }
    }
}

/// All pairs of ranks. `exact`: the plan finds the smallest ranges.
template <class Mask>
wrong check_mask(const Mask& mask, bool exact, int offset = 0) {
  wrong w;
  random_sequence random(11);
  for (int round = 0; round < 12; ++round) {
    const int ranks = 1 + static_cast<int>(random.below(4));
    sequence_slices slices{.tokens = random.below(20), .order = round % 2 == 0 ? slicing::zigzag : slicing::contiguous};
    std::vector<int64> ends;
    int64 end = 0;
    for (int64 i = 0; i < slices.pieces(ranks); ++i) ends.push_back(end += random.below(6));
    if (round % 3 != 0) slices.tokens = end, slices.ends = {ends.data(), {slices.pieces(ranks)}};
    CHECK(slices.check(ranks).ok());
    const ring_plan<Mask> plan{mask, slices, ranks, offset};
    int64 all = 0;
    for (int r = 0; r < ranks; ++r) {
      const token_slice queries = slices.of(r, ranks);
      all += queries.count();
      for (int of = 0; of < ranks; ++of) {
        const token_slice keys = slices.of(of, ranks);
        const token_range seen = plan.keys_seen(r, of), seeing = plan.queries_seeing(r, of);
        token_range own_keys{}, own_queries{};
        for (int64 i = 0; i < queries.count(); ++i)
          for (int64 j = 0; j < keys.count(); ++j)
            if (keeps(mask, offset, token(queries, i), token(keys, j))) {
              own_keys = giwa::detail::hull(own_keys, {j, 1});
              own_queries = giwa::detail::hull(own_queries, {i, 1});
            }
        const auto contains = [](const token_range& a, const token_range& b) {
          return b.count == 0 || (a.first <= b.first && b.end() <= a.end());
        };
        w.plan += !contains(seen, own_keys) || !contains(seeing, own_queries);
        w.loose += exact && (seen.count != own_keys.count || seeing.count != own_queries.count);
        const int step = plan.wrapped(r - of);
        for (int t = 0; t <= step; ++t) w.plan += t > 0 && !contains(plan.travelling(of, t), seen);
        w.plan += step > plan.last_step(r) && seen.count > 0;
        w.plan += plan.owner(r, step) != of || plan.visitor(of, step) != r;
        for (const int64 skip : {int64{0}, seen.first})
          check_tiles(mask, offset,
                      plan.mask_of(r, skip < queries.count() ? skip : 0, of, skip < keys.count() ? skip : 0), queries,
                      skip < queries.count() ? skip : 0, keys, skip < keys.count() ? skip : 0, w);
      }
    }
    w.plan += all != slices.tokens;
  }
  return w;
}
#define CHECK_MASK(...)                      \
  do {                                       \
    const wrong w = check_mask(__VA_ARGS__); \
    CHECK(w.checked > 300);                  \
    CHECK(w.keeps == 0);                     \
    CHECK(w.classifies == 0);                \
    CHECK(w.ranges == 0);                    \
    CHECK(w.plan == 0);                      \
    CHECK(w.loose == 0);                     \
  } while (false)

struct checkered {
  bool operator()(giwa::attention_coord c) const { return (c.query ^ c.key ^ c.head) & 1; }
};

/// A custom mask that is causal by what it says, and keeps its memory from the host.
struct said_causal {
  static constexpr bool ends_at_diagonal = true, keeps_to_diagonal = true;
  bool operator()(giwa::attention_coord c) const { return c.key <= c.diagonal; }
};
/// A custom window that the host may ask: the plan finds the smallest ranges, as for the masks of giwa.
struct known_window {
  static constexpr bool any_range = true, any_head = true;
  static constexpr bool known_on_host() { return true; }
  bool operator()(giwa::attention_coord c) const { return c.diagonal - 2 <= c.key && c.key <= c.diagonal; }
  tile_keep classify(const giwa::score_tile& t) const {
    return t.first_key > t.last_diagonal() || t.last_key < t.first_diagonal() - 2 ? tile_keep::none : tile_keep::some;
  }
};

/// Masks that the host may ask, but not about a whole slice, or not about all heads at once.
struct known_by_tile {
  static constexpr bool any_head = true;
  static constexpr bool known_on_host() { return true; }
  bool operator()(giwa::attention_coord) const { return true; }
  tile_keep classify(const giwa::score_tile& t) const {
    return t.last_key - t.first_key > 1 ? tile_keep::none : tile_keep::all;  // right for single keys and pairs only
  }
};
struct known_by_head {
  static constexpr bool any_range = true;
  static constexpr bool known_on_host() { return true; }
  bool operator()(giwa::attention_coord c) const { return c.head > 0; }
  tile_keep classify(const giwa::score_tile& t) const { return t.head > 0 ? tile_keep::all : tile_keep::none; }
};

}  // namespace

TEST_CASE("the host asks a mask about whole slices only if one answer holds for all their tiles and heads") {
  using giwa::detail::keep_on_host;
  const giwa::score_tile slice{
      .batch = 0, .head = 0, .first_query = 0, .last_query = 1023, .first_key = 1024, .last_key = 2047, .offset = 0};
  CHECK(keep_on_host<known_by_tile>::of({}, slice) == tile_keep::some);
  CHECK(keep_on_host<known_by_head>::of({}, slice) == tile_keep::some);
  CHECK(keep_on_host<giwa::mask_and<giwa::full, known_by_head>>::of({}, slice) == tile_keep::some);
  CHECK(keep_on_host<giwa::full>::of({}, slice) == tile_keep::all);
}

TEST_CASE("masks on slices keep what they keep of the whole sequence") {
  using namespace giwa;
  CHECK_MASK(full{}, true);
  CHECK_MASK(causal{}, true);
  CHECK_MASK(causal{}, true, 3);
  CHECK_MASK(causal{}, true, -6);
  CHECK_MASK(keys_back{2}, true);
  CHECK_MASK(keys_ahead{1}, true);
  CHECK_MASK(sliding_window{3}, true);
  CHECK_MASK(sliding_window{0}, false);
  CHECK_MASK(prefix{4}, true);
  CHECK_MASK(causal{} & keys_back{2}, false);
  CHECK_MASK(prefix{4} | causal{}, false, -2);
  CHECK_MASK(!causal{}, true);
  CHECK_MASK(!(keys_back{1} & keys_ahead{1}), false);
  const std::vector<int> counts{0, 5};
  CHECK_MASK(prefix{.counts = counts.data()}, false);
  std::vector<int> ids(2 * 64);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i / 5);
  CHECK_MASK(segment_ids{ids.data(), ids.data(), 64, 64, true} & causal{}, false);
  CHECK_MASK(checkered{}, false);
  CHECK_MASK(said_causal{}, true);
  CHECK_MASK(said_causal{} & keys_ahead{2}, true);
  CHECK_MASK(known_window{}, true);
  CHECK_MASK(known_window{}, true, 2);
  CHECK_MASK((visible_parts{0x8040'2011'0905'0301ull, 8, 8}), false);
  CHECK_MASK(checkered{} & (visible_parts{0x8040'2011'0905'0301ull, 8, 8}), false);
  CHECK_MASK(checkered{} & (visible_parts{0x8040'2011'0905'0301ull, 1, 3}), false);
}

TEST_CASE("zigzag slices give all ranks of a causal ring the same work") {
  for (const int ranks : {2, 3, 8}) {
    const sequence_slices slices{.tokens = 16 * ranks};
    std::vector<int64> pairs(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r)
      for (int64 i = 0; i < slices.of(r, ranks).count(); ++i)
        pairs[static_cast<std::size_t>(r)] += token(slices.of(r, ranks), i) + 1;
    for (const int64 n : pairs) CHECK(n == pairs[0]);
    CHECK(slices.most(ranks) == 16);
  }
  static_assert(sequence_slices{.tokens = 100}.of(1, 3).ranges[1].first == 66);
}
