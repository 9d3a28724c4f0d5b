// SPDX-License-Identifier: MIT
// attention_cached on the CPU against the double reference: pages, lengths, packed queries, heads, masks, types, scales.
#include "host/attention/cached_check.hpp"

namespace {

using namespace giwa_test;
using giwa::causal;

/// Sequences of few, many and no keys.
cached_case_options small_case(int64 page_size, bool lists) {
  cached_case_options c;
  c.seed = static_cast<uint64>(2 * page_size + lists);
  c.heads = 4;
  c.kv_heads = 2;
  c.queries = {2, 2, 2, 2, 2};
  c.page_size = page_size;
  c.keys = 90;
  c.most = page_size == 0 ? 0 : 90 / page_size + 1;
  c.lists = lists && page_size > 0;
  c.lengths = {90, 0, 1, static_cast<int>(page_size), 65};
  return c;
}

template <class T, int Rank>
struct named_view : giwa::tensor_view<T, Rank> {
  explicit named_view(const giwa::tensor_view<T, Rank>& v) : giwa::tensor_view<T, Rank>(v) {}
};

}  // namespace

TEST_CASE("pages of 1 to 17 keys, in tables and in lists") {
  faults f;
  for (int64 page = 0; page <= 17; ++page)
    for (const bool lists : {false, true}) {
      cached_case_options c = small_case(page, lists);
      f.add(cached_fault_of<float, 8>(c));
      f.add(cached_fault_of<float, 8>(c, causal::bottom_right));
      c.shared = true;
      c.seed += 100;
      f.add(cached_fault_of<float, 8>(c));
      c.strange = 4;
      f.add(cached_fault_of<float, 8>(c));
      f.add(cached_fault_of<float, 8>(c, giwa::sliding_window{9, giwa::alignment::bottom_right}));
    }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("lengths around pages and tiles, and out of range") {
  faults f;
  for (const int64 page : {0, 1, 3, 16, 64, 100}) {
    cached_case_options c;
    c.page_size = page;
    c.keys = 200;
    c.most = page == 0 ? 0 : giwa::ceil_div(int64{200}, page);
    const int p = static_cast<int>(page);
    c.lengths = {0, 1, -1, p - 1, p, p + 1, 63, 64, 65, 127, 128, 129, 199, 200, 201, INT_MAX, INT_MIN};
    c.queries.assign(c.lengths.size(), 1);
    c.heads = 2;
    for (const int64 queries : {1, 3}) {
      c.queries[0] = queries;
      c.seed = static_cast<uint64>(10 * page + queries);
      f.add(cached_fault_of<float, 24>(c));
      f.add(cached_fault_of<float, 24>(c, causal::bottom_right));
      f.add(cached_fault_of<float, 24>(c, causal::top_left));
    }
  }
  cached_case_options c;  // without lengths all keys count
  c.queries = {3, 3};
  c.keys = 130;
  f.add(cached_fault_of<float, 24>(c));
  f.add(cached_fault_of<float, 24>(c, causal::bottom_right));
  c.keys = 3;
  f.add(cached_fault_of<float, 24>(c, causal{}));  // as many keys as queries: no diagonal to choose
  CHECK_NO_FAULTS(f);
}

TEST_CASE("packed queries: none, one, and more than a tile") {
  faults f;
  for (const int64 page : {0, 1, 5, 16}) {
    cached_case_options c = small_case(page, page == 5);
    c.packed = true;
    c.queries = {1, 0, 30, 3, 200};
    c.sinks = page == 1;
    f.add(cached_fault_of<float, 8>(c));
    f.add(cached_fault_of<float, 8>(c, causal::bottom_right));
    f.add(cached_fault_of<float, 8>(c, causal::top_left));
    c.queries = {0, 0, 0, 0, 0};
    f.add(cached_fault_of<float, 8>(c));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("any ratio of heads, and two head sizes") {
  faults f;
  for (const int64 kv_heads : {1, 2, 3})
    for (int64 ratio = 1; ratio <= 8; ++ratio) {
      cached_case_options c = small_case(ratio % 3 == 0 ? 0 : 4 + ratio, ratio % 2 == 0);
      c.heads = ratio * kv_heads;
      c.kv_heads = kv_heads;
      c.sinks = ratio % 2 == 0;
      c.lse = ratio != 5;
      f.add(cached_fault_of<float, 24, 8>(c));
      f.add(cached_fault_of<float, 5, 33>(c, causal::bottom_right));
      f.add(cached_fault_of<float, 1>(c));
      if (ratio % 4 != 0) continue;
      c.latent = true;
      f.add(cached_fault_of<float, 576, 512>(c));
      f.add(cached_fault_of<giwa::bf16, 576, 512>(c, causal::bottom_right));
    }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("every layout of every tensor") {
  faults f;
  constexpr int kinds = static_cast<int>(case_layout::broadcast);  // all but this one: keys differ between sequences
  for (int i = 0; i < 4 * kinds; ++i) {
    cached_case_options c = small_case(i % 3 == 0 ? 0 : i, i % 2 == 0);
    c.layout[static_cast<std::size_t>(i / kinds)] = static_cast<case_layout>(i % kinds);
    c.layout[static_cast<std::size_t>((i / kinds + 1) % 4)] = static_cast<case_layout>((i + 2) % kinds);
    c.offset = i % 8;
    c.packed = i % 5 == 0;
    f.add(cached_fault_of<float, 40>(c));
    f.add(cached_fault_of<float, 1>(c));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("masks and score modifiers count queries within the call and keys within the sequence") {
  faults f;
  const float slopes[4] = {0.5f, 0.25f, 0.125f, 0.0625f};
  const giwa::alignment last = giwa::alignment::bottom_right;
  for (const int64 page : {0, 7}) {
    cached_case_options c = small_case(page, true);
    c.queries = {3, 3, 3, 3, 3};
    f.add(cached_fault_of<float, 16>(c, by_distance{}, own_score{}));
    f.add(cached_fault_of<float, 16>(c, giwa::sliding_window{5, last}));
    f.add(cached_fault_of<float, 16>(c, giwa::prefix{2} | giwa::sliding_window{5, last}));
    f.add(cached_fault_of<float, 16>(c, giwa::full{}, giwa::then(giwa::alibi{slopes, 0, last}, giwa::softcap{3})));
    f.add(cached_fault_of<float, 16>(c, causal{giwa::alignment::offset(20)}));
    c.packed = true;
    c.queries = {4, 1, 0, 2, 40};
    c.align = last;
    f.add(cached_fault_of<float, 16>(c, by_distance{{}}, own_score{}));
    f.add(cached_fault_of<float, 16>(c, causal{}));
    c.scale = -0.5f;
    f.add(cached_fault_of<float, 16>(c, causal{}));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("every type of queries, cache and output") {
  faults f;
  for (const int64 page : {0, 6}) {
    const cached_case_options c = small_case(page, false);
    f.add(cached_fault_of<giwa::fp16, 16>(c));
    f.add(cached_fault_of<giwa::bf16, 16>(c, causal::bottom_right));
    f.add(cached_fault_of<giwa::fp16, 16, 24, giwa::fp16, float>(c));
    f.add(cached_fault_of<float, 16, 16, float, giwa::bf16>(c));
    f.add(cached_fault_of<float, 16, 16, giwa::e4m3>(c));
    f.add(cached_fault_of<giwa::bf16, 16, 16, giwa::e4m3>(c));
    f.add(cached_fault_of<float, 16, 16, giwa::int8_code>(c));
    f.add(cached_fault_of<float, 16, 16, giwa::int4_pair>(c));
    f.add(cached_fault_of<giwa::bf16, 16, 24, giwa::int8_code, giwa::fp16>(c, causal::bottom_right));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("scales of every shape") {
  faults f;
  for (const int64 page : {0, 1, 6})
    for (int shape = -1; shape < 8; ++shape) {
      cached_case_options c = small_case(page, shape % 2 == 0);
      c.k_scales = shape;
      c.v_scales = shape < 0 ? 7 : shape * 3 % 8;
      c.strange = page == 1 ? 5 : 0;
      f.add(cached_fault_of<float, 16, 16, giwa::e4m3>(c));
      c.v_scales = -1;
      f.add(cached_fault_of<giwa::fp16, 16, 8, giwa::e4m3, float>(c, causal::bottom_right));
      f.add(cached_fault_of<giwa::fp16, 16, 8, giwa::int8_code, float>(c, causal::bottom_right));
      f.add(cached_fault_of<giwa::fp16, 16, 8, giwa::int4_pair, float>(c, causal::bottom_right));
      c.v_scales = shape;
      f.add(cached_fault_of<float, 16, 16, giwa::int8_code>(c, by_distance{}));
    }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("long sequences, in threads") {
  faults f;
  cached_case_options c = small_case(16, false);
  c.most = 400;
  c.heads = 8;
  c.lengths = {6400, 2049, 0, 4097, 2048};
  f.add(cached_fault_of<float, 32>(c));
  c.packed = true;
  c.queries = {1, 1, 1, 250, 1};
  f.add(cached_fault_of<float, 32>(c, causal::bottom_right));
  CHECK_NO_FAULTS(f);
}

TEST_CASE("a list of head sizes, and few queries") {
  cached_case_options options = small_case(4, false);
  options.head_size = options.head_size_v = 16;
  cached_case<float> c(options);
  const auto a = c.views();
  CHECK(giwa::choose_head_size<8, 16>(a.q.extent(3), [&](auto size) {
          return giwa::attention_cached<size>(giwa::host, a.cache, a.q, a.o, causal::bottom_right, c.call_options());
        }).ok());
  CHECK(judge<float>(c, answers_of<float>(c, causal::bottom_right, giwa::plain_score{})).failure == "");
  c.clear_outputs();
  CHECK(giwa::attention_cached<16, giwa::few_queries>(giwa::host, a.cache, a.q, a.o).ok());
  c.options.lse = false;
  CHECK(judge<float>(c, answers_of<float>(c, giwa::full{}, giwa::plain_score{})).failure == "");
  const giwa::status other = giwa::choose_head_size<8, 32>(
      a.q.extent(3), [&](auto size) { return giwa::attention_cached<size>(giwa::host, a.cache, a.q, a.o); });
  CHECK(other.argument == std::string("q"));
  c.clear_outputs();  // views of derived types
  const named_view q(a.q);
  const named_view o(a.o);
  CHECK(giwa::attention_cached<16>(giwa::host, a.cache, q, o).ok());
  CHECK(judge<float>(c, answers_of<float>(c, giwa::full{}, giwa::plain_score{})).failure == "");
  c.clear_outputs();
  CHECK(giwa::attention_cached<giwa::head_sizes<16>>(giwa::host, a.cache, q, o).ok());
  CHECK(judge<float>(c, answers_of<float>(c, giwa::full{}, giwa::plain_score{})).failure == "");
}

TEST_CASE("all numbers of e4m3, as rows of the CPU path widen them") {
  giwa::e4m3 row[256];
  float wide[256];
  for (int i = 0; i < 256; ++i) row[i] = giwa::e4m3::from_bits(static_cast<unsigned char>(i));
  giwa::detail::host_widen(giwa::detail::fastest_loops(), row, wide, 256);
  for (int i = 0; i < 256; ++i) {
    const float one = giwa::convert<float>{}(row[i]);
    CHECK(std::memcmp(&one, &wide[i], sizeof one) == 0);
  }
}
