// SPDX-License-Identifier: MIT
// The kernel of FMA instructions for attention_cached on the host executor: against the reference, with hostile inputs.
#include <giwa/attention/kernels/simt/cached_simt.cuh>
#include <giwa/base/throw.hpp>
#include <giwa/host_executor.cuh>

#include <climits>

#include "support/cached_case.hpp"
#include "support/catch.hpp"
#include "support/environment.hpp"
#include "support/rotated_case.hpp"
#include "support/same_bits.hpp"

using namespace giwa_test;
using giwa::causal;
using giwa::fp16;

namespace {

template <int HeadSize, int HeadSizeV, class T, class Element, class O, class Mask = giwa::full,
          class Score = giwa::plain_score>
giwa::status run_op(const giwa::detail::cached_views<T, Element, O>& a, const giwa::cached_options& options,
                    const Mask& mask = {}, const Score& score = {}, int64 blocks = 5) {
  using op = giwa::detail::cached_simt_op<T, Element, O, HeadSize, HeadSizeV, Mask, Score>;
  if (const giwa::status s = giwa::detail::check_cached(a, mask, score, options, HeadSize, HeadSizeV); !s.ok())
    return s;
  const auto p = giwa::detail::cached_params_of(a, mask, score, options);
  return giwa::launch(giwa::host, {.grid = blocks, .block = op::max_threads}, op{}, p);
}

// Empty, or what is wrong with the result.
template <int HeadSize, int HeadSizeV, class T, class Element, class O, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string fault(cached_case<T, Element, O>& c, const Mask& mask = {}, const Score& score = {}) {
  const giwa::status s = run_op<HeadSize, HeadSizeV>(c.views(), c.call_options(), mask, score);
  if (!s.ok()) return giwa::format_status(s).c_str() + ("; " + c.options.text());
  return judge<float>(c, answers_of<float>(c, mask, score)).failure;
}
template <class T, int HeadSize, int HeadSizeV, class Element = T, class O = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string fault_of(cached_case_options options, const Mask& mask = {}, const Score& score = {}) {
  options.head_size = HeadSize;
  options.head_size_v = HeadSizeV;
  cached_case<T, Element, O> c(options);
  return fault<HeadSize, HeadSizeV>(c, mask, score);
}

cached_case_options case_of(int64 page_size, bool packed) {
  cached_case_options c;
  c.seed = static_cast<uint64>(2 * page_size + packed);
  c.heads = 4;
  c.kv_heads = 2;
  c.queries = packed ? std::vector<int64>{1, 0, 4, 2, 0} : std::vector<int64>{2, 2, 2, 2, 2};
  c.packed = packed;
  c.page_size = page_size;
  c.keys = 300;
  c.most = page_size == 0 ? 0 : giwa::ceil_div(int64{300}, page_size);
  c.lists = page_size == 7;
  c.lengths = {300, INT_MIN, 33, INT_MAX, 70};
  c.strange = page_size == 3 ? 4 : 0;
  c.sinks = page_size == 0;
  return c;
}

}  // namespace

TEST_CASE("rows of every layout, in pages, packed, under masks and score modifiers") {
  int kind = 0;
  for (const int64 page : {0, 1, 3, 7, 64})
    for (const bool packed : {false, true}) {
      cached_case_options c = case_of(page, packed);
      for (case_layout& l : c.layout) l = static_cast<case_layout>(kind++ % static_cast<int>(case_layout::broadcast));
      c.offset = kind % 3;
      CHECK(fault_of<float, 24, 40>(c) == "");
      if (small_mode() && kind > 4) continue;
      CHECK(fault_of<float, 24, 40>(c, causal::bottom_right) == "");
      CHECK(fault_of<float, 24, 40>(c, giwa::sliding_window{40, giwa::alignment::bottom_right}, own_score{}) == "");
      c.scale = -0.5f;
      CHECK(fault_of<float, 24, 40>(c, by_distance{}) == "");
    }
}

TEST_CASE("every type of queries, cache and output, and scales of every shape") {
  CHECK(fault_of<fp16, 33, 100>(case_of(7, true)) == "");
  CHECK(fault_of<fp16, 64, 64, fp16, float>(case_of(0, false), causal::bottom_right) == "");
  for (int shape = -1; shape < 8; ++shape) {
    cached_case_options c = case_of(shape % 2 == 0 ? 3 : 0, shape % 3 == 0);
    c.k_scales = shape;
    c.v_scales = shape < 0 ? 7 : shape * 3 % 8;
    CHECK(fault_of<giwa::bf16, 16, 132, giwa::e4m3, float>(c) == "");
    if (small_mode() && shape > 2) break;
    c.v_scales = -1;
    CHECK(fault_of<float, 80, 8, giwa::e4m3>(c, causal::bottom_right) == "");
  }
}

TEST_CASE("rows of blocks") {
  for (const int64 page : {0, 3, 64}) {
    CHECK(fault_of<fp16, 64, 32, giwa::q8_0>(case_of(page, page == 3), causal::bottom_right) == "");
    CHECK(fault_of<giwa::bf16, 32, 96, giwa::q4_0>(case_of(page, page != 3)) == "");
  }
}

TEST_CASE("NaN and infinity reach only rows that see them") {
  for (const bool in_k : {true, false})
    for (const float strange : {NAN, HUGE_VALF, -HUGE_VALF})
      for (const int64 key : {0, 31, 69}) {
        cached_case_options options = case_of(7, true);
        options.lists = false;
        options.head_size = options.head_size_v = 8;
        options.queries = {1, 0, 4, 2, 3};
        cached_case<float> c(options);
        (in_k ? c.k : c.v).view()(c.element[4][static_cast<std::size_t>(key / 7)], key % 7, 0, 1) = strange;
        CHECK(fault<8, 8>(c, causal::bottom_right) == "");
        c.clear_outputs();
        CHECK(fault<8, 8>(c, by_distance{}) == "");
        if (small_mode()) return;
      }
}

TEST_CASE("a prior, apart and in place, and one without keys") {
  cached_case_options options = case_of(0, true);
  options.head_size = 16, options.head_size_v = 8;
  options.lengths = {};
  const auto run = [](const auto& views, const giwa::cached_options& o) { return run_op<16, 8>(views, o); };
  for (const int64 cut : {0, 100, 300})
    for (const bool in_place : {true, false}) {
      cached_case<float> c(options), other(options);
      auto& second = in_place ? c : other;
      REQUIRE(run_in_parts(c.views(), c.call_options(), second.o.view(), second.lse.view(), {cut}, run).ok());
      CHECK(judge<float>(c, answers_of<float>(c, giwa::full{}, giwa::plain_score{})).failure == "");
    }
}

TEST_CASE("the same bits with any number of blocks, aligned or not") {
  cached_case_options options = case_of(0, false);
  options.head_size = options.head_size_v = 64;
  cached_case<float> c(options);
  REQUIRE(run_op<64, 64>(c.views(), c.call_options(), giwa::full{}, giwa::plain_score{}, 1).ok());
  const auto o = c.o.elements<float>(), lse = c.lse.elements<float>();
  c.clear_outputs();
  REQUIRE(run_op<64, 64>(c.views(), c.call_options(), giwa::full{}, giwa::plain_score{}, 100).ok());
  CHECK(same_bits(c.o.elements<float>(), o));
  CHECK(same_bits(c.lse.elements<float>(), lse));
  options.offset = 1;
  options.layout.fill(case_layout::padded);
  cached_case<float> unaligned(options);  // the numbers of the same seed
  REQUIRE(run_op<64, 64>(unaligned.views(), unaligned.call_options()).ok());
  CHECK(same_bits(unaligned.o.elements<float>(), o));
  CHECK(same_bits(unaligned.lse.elements<float>(), lse));
}

TEST_CASE("equal scores are equal weights, however large they are") {
  cached_case_options options;
  options.head_size = options.head_size_v = 8;
  options.keys = 50;
  cached_case<float> c(options);
  // q k is 8e37, and the last digit of its product with the scale some 1e30.
  c.q.for_each([&](std::size_t at) { c.q.memory[at] = 1e19f; });
  c.k.for_each([&](std::size_t at) { c.k.memory[at] = 1e18f; });
  REQUIRE(run_op<8, 8>(c.views(), c.call_options()).ok());
  CHECK((c.lse.view()(0, 0, 0) > 2e37f && c.lse.view()(0, 0, 0) < 3e37f));
  for (int d = 0; d < 8; ++d) {
    double mean = 0;
    for (int key = 0; key < 50; ++key) mean += static_cast<double>(c.v.view()(0, key, 0, d)) / 50;
    CHECK(std::abs(static_cast<double>(c.o.view()(0, 0, 0, d)) - mean) < 1e-5);
  }
}

TEST_CASE("queries that the kernel rotates have the bits of queries that are rotated before it") {
  random_sequence random(9);
  for (const bool packed : {false, true})
    for (int i = 0; i < (small_mode() ? 2 : 8); ++i) {
      cached_case_options options = case_of(i % 2 == 0 ? 0 : 7, packed);
      options.head_size = 40, options.head_size_v = 24;
      options.lengths = {300, INT_MIN, 33, INT_MAX, 70};
      cached_case<fp16> plain(options), before(options);
      const giwa::rotary_base rotary(10000.0, drawn_layout(40, random));
      REQUIRE(rotate(before, rotary, positions_in_sequences(before)).ok());
      REQUIRE(run_op<40, 24>(before.views(), before.call_options(), causal::bottom_right, own_score{}).ok());
      REQUIRE(run_op<40, 24>(plain.views(), plain.call_options(), causal::bottom_right,
                             giwa::rotated_queries(rotary, own_score{}))
                  .ok());
      CHECK(same_bits(plain.o.memory, before.o.memory));
      CHECK(same_bits(plain.lse.memory, before.lse.memory));
    }
}
