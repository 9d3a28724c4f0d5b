// SPDX-License-Identifier: MIT
// Offsets, lengths, indices, counts and ids in memory that are INT_MIN or INT_MAX: the bits are those of the numbers that they count as.
#include <giwa/host.hpp>
#include <giwa/multi/slice_mask.hpp>

#include <climits>
#include <cmath>
#include <cstring>
#include <vector>

#include "support/call_options.hpp"
#include "support/catch.hpp"

// A sanitizer test as well (test/host/grid/sanitizers.cmake): there it fails at an overflow whose result happens to be right.
namespace {

using giwa::int64;
using giwa::tensor_view;
using ints = std::vector<int>;

constexpr int64 sequences = 4, queries = 3, keys = 4, heads = 2, size = 8;
constexpr int64 all_queries = sequences * queries, all_keys = sequences * keys;

struct numbers {
  ints q_offsets{0, 3, 6, 9, 12}, k_offsets{0, 4, 8, 12, 16}, q_lengths, k_lengths, index;
};

std::vector<float> drawn(int64 rows, int seed) {
  std::vector<float> x(static_cast<std::size_t>(rows * heads * size));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i + 1) * static_cast<float>(seed));
  return x;
}
const int* pointer(const ints& x) { return x.empty() ? nullptr : x.data(); }

// o, lse and, unless only the forward pass is asked for, dq, dk and dv.
template <int Rank, bool Backward, class Mask, class Score>
std::vector<float> results(const numbers& n, const Mask& mask, const Score& score) {
  const auto q = drawn(all_queries, 1), k = drawn(all_keys, 2), v = drawn(all_keys, 3), dout = drawn(all_queries, 4);
  std::vector<float> o(q.size()), lse(static_cast<std::size_t>(all_queries * heads), -1.0f), dq(q.size()), dk(k.size()),
      dv(k.size());
  const auto view = [](auto* at, int64 rows) {
    if constexpr (Rank == 3)
      return tensor_view<std::remove_pointer_t<decltype(at)>, 3>(at, {sequences * rows, heads, size});
    else
      return tensor_view<std::remove_pointer_t<decltype(at)>, 4>(at, {sequences, rows, heads, size});
  };
  giwa::sequences s{
      .q_lengths = pointer(n.q_lengths), .k_lengths = pointer(n.k_lengths), .k_batch_index = pointer(n.index)};
  if (Rank == 3) s.q_offsets = n.q_offsets.data(), s.k_offsets = n.k_offsets.data(), s.count = sequences;
  const giwa::index<3> rows{Rank == 3 ? 1 : sequences, heads, Rank == 3 ? all_queries : queries};
  giwa::attention_options options;
  options.align = giwa::alignment::bottom_right;
  options.lse = tensor_view<float, 3>(lse.data(), rows);
  giwa::status state =
      giwa::attention_forward<size>(giwa::host, view(q.data(), queries), view(k.data(), keys), view(v.data(), keys),
                                    view(o.data(), queries), mask, score, giwa_test::with(options, s));
  INFO(giwa::format_status(state).c_str());
  REQUIRE(state.ok());
  if constexpr (Backward) {
    giwa::attention_backward_options backward;
    backward.align = giwa::alignment::bottom_right;
    state = giwa::attention_backward<size>(
        giwa::host, view(q.data(), queries), view(k.data(), keys), view(v.data(), keys),
        view(static_cast<const float*>(o.data()), queries), view(dout.data(), queries), view(dq.data(), queries),
        view(dk.data(), keys), view(dv.data(), keys), mask, score,
        giwa_test::with(giwa_test::with_lse(backward, tensor_view<const float, 3>(lse.data(), rows)), s));
    INFO(giwa::format_status(state).c_str());
    REQUIRE(state.ok());
  }
  for (const auto* x : {&lse, &dq, &dk, &dv}) o.insert(o.end(), x->begin(), x->end());
  return o;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
// Whether two calls under a causal mask have the same results.
template <int Rank>
bool agree(const numbers& hostile, const numbers& tame) {
  const giwa::causal mask{};
  return same(results<Rank, true>(hostile, mask, giwa::plain_score{}),
              results<Rank, true>(tame, mask, giwa::plain_score{}));
}

}  // namespace

TEST_CASE("offsets, lengths and indices of sequences") {
  numbers tame, n;
  n.q_offsets = {INT_MIN, 3, 6, 9, INT_MAX}, n.k_offsets = {INT_MIN, 4, 8, 12, INT_MAX};
  CHECK(agree<3>(n, tame));
  n.q_offsets = {0, INT_MAX, INT_MAX, INT_MAX, INT_MAX}, n.k_offsets = {INT_MIN, INT_MIN, 8, INT_MAX, INT_MAX};
  tame.q_offsets = {0, 12, 12, 12, 12}, tame.k_offsets = {0, 0, 8, 16, 16};
  CHECK(agree<3>(n, tame));

  n.k_offsets = {INT_MAX, INT_MIN, INT_MIN, INT_MIN, INT_MIN};
  tame.q_offsets = {0, 0, 0, 0, 12}, tame.k_offsets = {0, 0, 0, 0, 0};
  n.q_offsets = {INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MAX};
  CHECK(agree<3>(n, tame));

  numbers lengths, tame_lengths;
  lengths.q_lengths = {INT_MIN, INT_MAX, 2, INT_MAX}, lengths.k_lengths = {INT_MAX, INT_MAX, INT_MIN, 3};
  tame_lengths.q_lengths = {0, 3, 2, 3}, tame_lengths.k_lengths = {4, 4, 0, 3};
  CHECK(agree<3>(lengths, tame_lengths));
  CHECK(agree<4>(lengths, tame_lengths));

  numbers index, tame_index;
  index.index = {INT_MIN, INT_MAX, 1, 4}, tame_index.index = {-1, -1, 1, -1};
  CHECK(agree<3>(index, tame_index));
  CHECK(agree<4>(index, tame_index));
}

TEST_CASE("counts of a prefix") {
  const int hostile[] = {INT_MIN, INT_MAX, INT_MIN + 1, 2}, tame[] = {0, 4, -1, 2};
  const giwa::prefix a{.counts = hostile}, b{.counts = tame};
  CHECK(a.of(0) == 0);
  CHECK(a.last_key({}) == -1);
  const giwa::plain_score score{};
  CHECK(same(results<4, true>({}, a, score), results<4, true>({}, b, score)));
  CHECK(same(results<3, true>({}, a, score), results<3, true>({}, b, score)));
  const auto check = [&](const auto& with_hostile, const auto& with_tame) {
    CHECK(same(results<4, false>({}, with_hostile, score), results<4, false>({}, with_tame, score)));
  };
  const giwa::causal causal{};
  check(a | causal, b | causal);
  check(a & causal, b & causal);
  check(!a, !b);

  // A rank's rows of it.
  const auto slice = giwa::sequence_slices{.tokens = 8}.of(0, 2);
  const auto rows = giwa::detail::row_positions::of(slice);
  const giwa::detail::slice_mask<giwa::prefix> of_rank{a, rows, rows, 0};
  CHECK(of_rank.last_key({0, 0, 1, 0, 1}) < 0);
  CHECK(of_rank.last_key({1, 0, 1, 0, 1}) >= 3);
  CHECK(of_rank.last_key({3, 0, 1, 0, 1}) == 1);
}

TEST_CASE("ids of segments, and the number of a dropout") {
  const auto ids = [](int64 each, int low, int middle, int high) {
    ints x;
    for (int64 b = 0; b < sequences; ++b)
      for (int64 i = 0; i < each; ++i) x.push_back(i == 0 ? low : i + 1 < each ? middle : high);
    return x;
  };
  const ints q = ids(queries, INT_MIN, 0, INT_MAX), k = ids(keys, INT_MIN, 0, INT_MAX), tame_q = ids(queries, 0, 1, 2),
             tame_k = ids(keys, 0, 1, 2);
  for (const bool ascending : {false, true})
    CHECK(same(
        results<4, false>({}, giwa::segment_ids{q.data(), k.data(), queries, keys, ascending}, giwa::plain_score{}),
        results<4, false>({}, giwa::segment_ids{tame_q.data(), tame_k.data(), queries, keys, ascending},
                          giwa::plain_score{})));

  const giwa::uint64 number = ~giwa::uint64{0}, seed = number - 3;
  CHECK(same(results<4, false>({}, giwa::full{}, giwa::dropout(0.5f, seed, giwa::plain_score{}, &number)),
             results<4, false>({}, giwa::full{}, giwa::dropout(0.5f, seed - 0x9e3779b97f4a7c15u))));
}

namespace {

struct cache_numbers {
  ints lengths, pages, page_offsets, row_offsets;
  bool packed = false;
};

// o and lse of a call on a cache of 4 sequences, or 7 pages, of 4 keys. Without pages it is contiguous.
std::vector<float> cached(const cache_numbers& n) {
  const auto q = drawn(all_queries, 1), k = drawn(7 * keys, 2), v = drawn(7 * keys, 3);
  std::vector<float> o(q.size()), lse(static_cast<std::size_t>(all_queries * heads), -1.0f);
  giwa::kv_cache<const float> cache{.k = {k.data(), {n.pages.empty() ? sequences : 7, keys, heads, size}},
                                    .v = {v.data(), {n.pages.empty() ? sequences : 7, keys, heads, size}},
                                    .lengths = pointer(n.lengths)};
  if (!n.pages.empty()) {
    cache.pages = {.indices = n.pages.data(), .stride = 2, .offsets = pointer(n.page_offsets), .most = 2};
    cache.sequences = sequences;
  }
  giwa::cached_options options;
  options.lse = tensor_view<float, 3>(lse.data(), {n.packed ? 1 : sequences, heads, n.packed ? all_queries : queries});
  const giwa::causal mask = giwa::causal::bottom_right;
  const giwa::status s =
      n.packed
          ? giwa::attention_cached<size>(
                giwa::host, cache, tensor_view<const float, 3>(q.data(), {all_queries, heads, size}),
                tensor_view<float, 3>(o.data(), {all_queries, heads, size}), mask, giwa::plain_score{},
                giwa_test::with(options,
                                giwa::sequences{.q_offsets = n.row_offsets.data(), .count = sequences, .max_q = 3}))
          : giwa::attention_cached<size>(
                giwa::host, cache, tensor_view<const float, 4>(q.data(), {sequences, queries, heads, size}),
                tensor_view<float, 4>(o.data(), {sequences, queries, heads, size}), mask, giwa::plain_score{}, options);
  INFO(giwa::format_status(s).c_str());
  REQUIRE(s.ok());
  o.insert(o.end(), lse.begin(), lse.end());
  return o;
}

// The cache after new rows were appended to it, and the rotated queries.
std::vector<float> appended(const cache_numbers& n, const giwa::append_options<float>& given = {}) {
  const auto rows = drawn(all_queries, 1);
  std::vector<float> k(static_cast<std::size_t>(7 * keys * heads * size)), v = k, q = rows;
  giwa::kv_cache<float> cache{.k = {k.data(), {n.pages.empty() ? sequences : 7, keys, heads, size}},
                              .v = {v.data(), {n.pages.empty() ? sequences : 7, keys, heads, size}},
                              .lengths = pointer(n.lengths)};
  if (!n.pages.empty()) {
    cache.pages = {.indices = n.pages.data(), .stride = 2, .offsets = pointer(n.page_offsets), .most = 2};
    cache.sequences = sequences;
  }
  const auto rotary = giwa::rotary_base(10000, {.size = 8});
  auto options = given;
  giwa::status s;
  if (n.packed) {
    const tensor_view<const float, 3> x(rows.data(), {all_queries, heads, size});
    const tensor_view<float, 3> to(q.data(), {all_queries, heads, size});
    options.q = x, options.q_to = to;
    s = giwa::append_to_cache(
        giwa::host, cache, x, x, rotary,
        giwa_test::with(options, giwa::sequences{.q_offsets = n.row_offsets.data(), .count = sequences}));
  } else {
    const tensor_view<const float, 4> x(rows.data(), {sequences, queries, heads, size});
    const tensor_view<float, 4> to(q.data(), {sequences, queries, heads, size});
    options.q = x, options.q_to = to;
    s = giwa::append_to_cache(giwa::host, cache, x, x, rotary, options);
  }
  INFO(giwa::format_status(s).c_str());
  REQUIRE(s.ok());
  k.insert(k.end(), v.begin(), v.end());
  // Where lengths are out of range so are the positions, which queries are rotated by.
  return k;
}

}  // namespace

TEST_CASE("lengths, pages and rows of a cache") {
  const ints lengths{INT_MIN, INT_MAX, 3, INT_MAX}, in_pages{0, 8, 3, 8}, in_rows{0, 4, 3, 4};
  CHECK(same(cached({lengths, {}, {}, {}}), cached({in_rows, {}, {}, {}})));
  const ints pages{INT_MAX, INT_MIN, 0, INT_MAX, 4, INT_MIN, 6, 2}, tame_pages{-1, -1, 0, -1, 4, -1, 6, 2};
  CHECK(same(cached({lengths, pages, {}, {}}), cached({in_pages, tame_pages, {}, {}})));
  // Lists: one begins before the table, one ends before it begins, one has more pages than `most`.
  const ints lists{INT_MIN, 2, INT_MIN, 2, INT_MAX}, tame_lists{0, 2, 0, 2, 4};
  const ints of_lists{8, 0, 3, 8};
  CHECK(
      same(cached({{INT_MAX, INT_MAX, 3, INT_MAX}, pages, lists, {}}), cached({of_lists, tame_pages, tame_lists, {}})));
  for (const ints& rows : {ints{INT_MIN, 3, 6, 9, INT_MAX}, ints{0, 3, 6, 9, 12}})
    CHECK(same(cached({lengths, pages, {}, rows, true}), cached({in_pages, tame_pages, {}, {0, 3, 6, 9, 12}, true})));
  CHECK(same(cached({lengths, pages, {}, {INT_MAX, INT_MIN, INT_MIN, INT_MIN, INT_MAX}, true}),
             cached({in_pages, tame_pages, {}, {0, 0, 0, 0, 12}, true})));
}

TEST_CASE("lengths, pages, rows, slots and positions of an append") {
  const ints lengths{INT_MIN, INT_MAX, 3, 4}, tame{-9, 99, 3, 4};
  CHECK(same(appended({lengths, {}, {}, {}}), appended({tame, {}, {}, {}})));
  const ints pages{0, 1, 2, 3, INT_MIN, INT_MAX, 6, 4}, tame_pages{0, 1, 2, 3, -1, -1, 6, 4};
  CHECK(same(appended({lengths, pages, {}, {}}), appended({tame, tame_pages, {}, {}})));
  CHECK(same(appended({lengths, pages, {INT_MIN, 2, 4, 6, INT_MAX}, {}}),
             appended({tame, tame_pages, {0, 2, 4, 6, 8}, {}})));
  CHECK(same(appended({lengths, pages, {}, {INT_MIN, 3, 6, 9, INT_MAX}, true}),
             appended({{-99, 99, 3, -99}, tame_pages, {}, {0, 3, 6, 9, 12}, true})));  // the last end is past the rows
  CHECK(same(appended({lengths, pages, {}, {INT_MAX, INT_MIN, INT_MIN, INT_MIN, INT_MIN}, true}),
             std::vector<float>(2 * 7 * keys * heads * size)));

  ints slots(all_queries, INT_MIN), tame_slots(all_queries, -1);
  std::vector<int64> wide(all_queries, giwa::max_int64), positions(all_queries, giwa::max_int64);
  slots[3] = INT_MAX, slots[5] = tame_slots[5] = 7;
  wide[4] = -giwa::max_int64 - 1, wide[5] = 7, positions[5] = 2, positions[6] = -giwa::max_int64 - 1;
  const tensor_view<const int64, 1> at(positions.data(), {all_queries});
  const auto expected =
      appended({}, {.positions = at, .slots = tensor_view<const int, 1>(tame_slots.data(), {all_queries})});
  CHECK(
      same(appended({}, {.positions = at, .slots = tensor_view<const int, 1>(slots.data(), {all_queries})}), expected));
  CHECK(same(appended({}, {.positions = at, .slots = tensor_view<const int64, 1>(wide.data(), {all_queries})}),
             expected));
  CHECK(!same(expected, std::vector<float>(expected.size())));
}
