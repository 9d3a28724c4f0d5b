// SPDX-License-Identifier: MIT
// Attention by ordinary arithmetic, on the host executor: against the reference, and that nothing else reaches a row.
#include <giwa/base/throw.hpp>

#include "host/attention/simt_cases.cuh"
#include "support/catch.hpp"
#include "support/environment.hpp"

using namespace giwa_test;

namespace {

// Fewer cases where a sanitizer watches.
int cases(int all) { return small_mode() ? (all + 4) / 5 : all; }

// Empty, or what is wrong with the results.
template <int HeadSize, int HeadSizeV, class T, class O, class Mask, class Score>
std::string failure_of(attention_case<T, O>& c, const Mask& mask, const Score& score, int64 blocks_at_once = 1 << 20) {
  const giwa::status s = run_simt<HeadSize, HeadSizeV>(c.views(), mask, score, c.call_options(), blocks_at_once);
  if (!s.ok()) return std::string(giwa::format_status(s).c_str()) + "; " + c.options.text();
  return judge(c, answers_of(c, mask, score)).failure;
}

// Few rows see the first keys of a group of five, and the others every other key.
struct striped_mask {
  GIWA_HOST_DEVICE bool operator()(attention_coord c) const {
    return c.query % 5 == 1 ? c.key % 5 == 1 : c.key % 2 == 1 && c.key != 63 && c.key != 127;
  }
};

template <class T, class O>
bool same_bits(const attention_case<T, O>& a, const attention_case<T, O>& b) {
  return std::memcmp(a.o.memory.data(), b.o.memory.data(), a.o.memory.size() * sizeof(O)) == 0 &&
         std::memcmp(a.lse.memory.data(), b.lse.memory.data(), a.lse.memory.size() * sizeof(float)) == 0;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("attention is that of the reference", "", all_simt_types) {
  for (int i = 0; i < cases(10); ++i) {
    attention_case<typename TestType::input, typename TestType::output> c(simt_case<TestType>(i));
    const side_inputs inputs(c.options);
    CHECK(failure_of<TestType::head_size, TestType::head_size_v>(c, TestType::mask::make(inputs),
                                                                 TestType::score::make(inputs), 3) == "");
  }
}

TEST_CASE("packed sequences, empty ones among them, in as many blocks as there happen to be") {
  case_options options;
  options.heads = 6, options.kv_heads = 2, options.head_size = options.head_size_v = 64;
  options.q_lengths = {0, 65, 1, 0, 130, 3, 130, 0};
  options.k_lengths = {4, 65, 0, 0, 100, 70, 0, 0};
  options.align = giwa::alignment::bottom_right;
  options.sinks = true;
  constexpr int64 most[] = {1, 130, 0, 70, 1000};
  for (int i = 0; i < cases(5); ++i) {
    const int64 max_q = most[i];
    if (i % 2 == 1) options.align = giwa::alignment::offset(20 * i - 30);
    attention_case<float> c(options);
    auto views = c.views();
    views.packed.max_q = max_q;
    const giwa::status s = run_simt<64, 64>(views, giwa::causal{}, giwa::plain_score{}, c.call_options());
    REQUIRE(s.ok());
    CHECK(judge(c, answers_of(c, giwa::causal{}, giwa::plain_score{})).failure == "");
  }
}

TEST_CASE("sequences that end before their rows do, and keys that others read too") {
  for (int i = 0; i < cases(4); ++i) {
    case_options options;
    options.seed = static_cast<giwa_test::uint64>(i);
    options.heads = 4, options.kv_heads = 2, options.head_size = options.head_size_v = 40;
    options.align = giwa::alignment::bottom_right;
    options.sinks = i == 1;
    options.q_used = {70, 0, 64, 9}, options.k_used = {131, 7, 0, 200};  // the last is beyond the rows
    if (i % 2 == 0) {
      options.q_lengths = {80, 3, 64, 9}, options.k_lengths = {140, 40, 10, 66};
    } else {
      options.batch = 4, options.seq_q = 70, options.seq_k = 140;
    }
    if (i >= 2) options.k_index = {3, 0, 0, 1}, options.k_batch = 4;
    attention_case<fp16> c(options);
    // Rows of no sequence, with NaN in them: of the first, that two others may read to its 131st key.
    const auto k = c.k.view(), v = c.v.view();
    if (i == 1)
      for (int64 row = 131; row < 140; ++row)
        for (int64 head = 0; head < 2; ++head) k(0, row, head, 3) = v(0, row, head, 5) = giwa::convert<fp16>{}(NAN);
    CHECK(failure_of<40, 40>(c, giwa::causal{}, giwa::plain_score{}) == "");
  }
}

TEST_CASE("what a row does not see does not reach it, whatever it is") {
  case_options options;
  options.heads = 2, options.seq_q = 70, options.seq_k = 135, options.head_size = options.head_size_v = 40;
  options.align = giwa::alignment::bottom_right;
  const float inf = HUGE_VALF, nan = std::nanf("");
  const auto check = [&](const auto& mask) {
    attention_case<fp16> clean(options), spoilt(options);
    // Keys at both ends of tiles, one that few rows see, and the last.
    const int64 keys[] = {0, 30, 63, 64, 90, 127, 128, 134};
    for (int64 i = 0; i < 8; ++i)
      for (int64 column = i % 3; column < 40; column += 7) {
        const float bad = i % 3 == 0 ? nan : i % 3 == 1 ? inf : -inf;
        if (i % 2 == 0) spoilt.k.view()(0, keys[i], 0, column) = giwa::convert<fp16>{}(bad);
        spoilt.v.view()(0, keys[i], 0, column) = giwa::convert<fp16>{}(bad);
      }
    CHECK(failure_of<40, 40>(clean, mask, giwa::plain_score{}) == "");
    CHECK(failure_of<40, 40>(spoilt, mask, giwa::plain_score{}) == "");
    int64 unaffected = 0;
    bool same = true;
    for (int head = 0; head < 2; ++head)
      for (int query = 0; query < 70; ++query) {
        bool sees = false;
        for (const int64 key : keys) sees = sees || mask({0, head, query, static_cast<int>(key), query + 65});
        if (sees) continue;
        ++unaffected;
        for (int64 column = 0; column < 40; ++column)
          same = same && std::memcmp(&clean.o.view()(0, query, head, column), &spoilt.o.view()(0, query, head, column),
                                     sizeof(fp16)) == 0;
      }
    CHECK(unaffected > 0);
    CHECK(same);
  };
  check(giwa::sliding_window{5});
  check(giwa::sliding_window{13} & !giwa::prefix{66});
  if (cases(5) > 1) check(striped_mask{});
}

TEST_CASE("a query without a value spoils its own row only") {
  case_options options;
  options.heads = 2, options.seq_q = 66, options.seq_k = 70, options.head_size = options.head_size_v = 33;
  options.align = giwa::alignment::top_left;
  attention_case<float> clean(options), spoilt(options);
  spoilt.q.view()(0, 5, 1, 3) = std::nanf("");
  spoilt.q.view()(0, 64, 0, 0) = HUGE_VALF;
  CHECK(failure_of<33, 33>(clean, giwa::causal{}, giwa::plain_score{}) == "");
  CHECK(failure_of<33, 33>(spoilt, giwa::causal{}, giwa::plain_score{}) == "");
  for (const auto& [query, head] : {std::pair<int64, int64>{5, 1}, {64, 0}}) {
    for (int64 column = 0; column < 33; ++column)
      spoilt.o.view()(0, query, head, column) = clean.o.view()(0, query, head, column);
    spoilt.lse.view()(0, head, query) = clean.lse.view()(0, head, query);
  }
  CHECK(same_bits(clean, spoilt));
}

TEST_CASE("the bits of a row do not depend on what is beside it") {
  case_options options;
  options.batch = cases(2), options.heads = 6, options.kv_heads = 2, options.seq_q = 75, options.seq_k = 139;
  options.head_size = options.head_size_v = 40, options.align = giwa::alignment::bottom_right;
  attention_case<bf16> c(options), alone(options);
  const auto mask = giwa::causal{} & giwa::keys_back{90};
  REQUIRE(run_simt<40, 40>(c.views(), mask, giwa::plain_score{}, c.call_options()).ok());
  // Each head alone; of one sequence the last rows alone, as their diagonal stays where it is.
  for (int64 batch = 0; batch < options.batch; ++batch)
    for (int64 head = 0; head < 6; ++head) {
      const int64 first = batch == 0 ? 0 : 40 + 7 * (head % 5), kv_head = head / 3;
      const auto part = [&](const auto& v, int64 from, int64 h) {
        using view = std::remove_cvref_t<decltype(v)>;
        return view{&v(batch, from, h, 0),
                    {1, v.extent(1) - from, 1, v.extent(3)},
                    {v.stride(0), v.stride(1), v.stride(2), v.stride(3)}};
      };
      const auto all = alone.views();
      giwa::attention_options call{};
      call.align = options.align;
      const auto lse = alone.lse.view();
      call.lse = {&lse(batch, head, first), {1, 1, 75 - first}, {lse.stride(0), lse.stride(1), lse.stride(2)}};
      REQUIRE(
          run_simt<40, 40>(giwa::detail::attention_views<bf16, bf16>{part(all.q, first, head), part(all.k, 0, kv_head),
                                                                     part(all.v, 0, kv_head), part(all.o, first, head)},
                           mask, giwa::plain_score{}, call)
              .ok());
      for (int64 i = 0; i < first; ++i) {
        lse(batch, head, i) = c.lse.view()(batch, head, i);
        for (int64 column = 0; column < 40; ++column)
          all.o(batch, i, head, column) = c.o.view()(batch, i, head, column);
      }
    }
  CHECK(same_bits(c, alone));
}
