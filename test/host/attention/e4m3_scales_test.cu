// SPDX-License-Identifier: MIT
// Scales of q, k and v in e4m3: the CPU, the reference and the portable kernel on the host executor, against loops in fp64.
#include "host/attention/e4m3_scales_cases.hpp"

#include <giwa/host.hpp>
#include <giwa/tile/operand_of_bytes.cuh>

#include <cstring>

#include "host/attention/simt_cases.cuh"
#include "support/catch.hpp"

using namespace giwa_test;

namespace {

constexpr int size = 64;
using t8 = tensor_view<const e4m3, 4>;

struct outputs {
  std::vector<float> o, lse;
};
/// Views of a problem's memory.
template <class Run>
giwa::status with_views(const scaled_problem& p, outputs& to, const Run& run) {
  to.o.assign(p.q.size(), NAN), to.lse.assign(static_cast<std::size_t>(p.batch * p.heads * p.queries), NAN);
  giwa::attention_options options;
  options.lse = {to.lse.data(), {p.batch, p.heads, p.queries}};
  options.scales = p.scales();
  options.align = giwa::alignment::bottom_right;
  if (!p.sinks.empty()) options.sinks = {p.sinks.data(), {p.heads}};
  return run(t8(p.q.data(), {p.batch, p.queries, p.heads, p.size}),
             t8(p.k.data(), {p.batch, p.keys, p.kv_heads, p.size}),
             t8(p.v.data(), {p.batch, p.keys, p.kv_heads, p.size}),
             tensor_view<float, 4>(to.o.data(), {p.batch, p.queries, p.heads, p.size}), options);
}

/// The largest relative error of the three paths; 1 where NaN is elsewhere, or a call is refused.
template <class Mask>
double error_of(const scaled_problem& p, const Mask& mask) {
  const auto sees = [&](int64 i, int64 j) {
    return mask(giwa::attention_coord{0, 0, static_cast<int>(i), static_cast<int>(j),
                                      static_cast<int>(i + p.keys - p.queries)});
  };
  std::vector<double> right, right_lse;
  p.answer(sees, right, right_lse);
  double worst = 0;
  const auto judge = [&](const giwa::status& s, const outputs& got) {
    if (!s.ok()) worst = 1;
    const distance o = distance_of(got.o, right, right_lse, p.queries, p.heads, p.size),
                   lse = distance_of(got.lse, right_lse, right_lse, p.queries, p.heads, 1);
    if (o.other_nan + lse.other_nan != 0) worst = 1;
    worst = std::max({worst, o.relative(), lse.largest});
  };
  outputs got;
  judge(with_views(p, got,
                   [&](auto q, auto k, auto v, auto o, const auto& options) {
                     return giwa::attention_forward<size>(giwa::host, q, k, v, o, mask, giwa::plain_score{}, options);
                   }),
        got);
  judge(with_views(p, got,
                   [&](auto q, auto k, auto v, auto o, const auto& options) {
                     return giwa::attention_reference(giwa::host, q, k, v, o, mask, giwa::plain_score{}, options);
                   }),
        got);
  judge(with_views(p, got,
                   [&](auto q, auto k, auto v, auto o, const auto& options) {
                     const giwa::detail::attention_views<e4m3, float> views{q, k, v, o, {}};
                     return run_simt<size, size>(views, mask, giwa::plain_score{}, options);
                   }),
        got);
  return worst;
}

scaled_problem problem_of(const scale_kinds& kinds, int64 queries = 70, int64 keys = 150) {
  scaled_problem p;
  p.batch = 2, p.queries = queries, p.keys = keys, p.heads = 4, p.kv_heads = 2, p.size = size, p.kinds = kinds,
  p.mean = 1;
  p.draw();
  return p;
}

/// The argument that a call names, "" if it succeeds.
template <class Score = giwa::plain_score>
std::string refused(const scaled_problem& p, const giwa::attention_scales& scales, const Score& score = {}) {
  outputs got;
  const giwa::status s = with_views(p, got, [&](auto q, auto k, auto v, auto o, giwa::attention_options options) {
    options.scales = scales;
    return giwa::attention_forward<size>(giwa::host, q, k, v, o, giwa::full{}, score, options);
  });
  return s.ok() ? "" : s.argument;
}

}  // namespace

TEST_CASE("scales of every granularity on every path of the host") {
  const scale_kinds each[] = {
      {.q = true},
      {.k = true},
      {.v = true},
      {.q = true, .k = true, .v = true, .one_batch = true, .one_head = true},
      {.q = true, .q_rows = 1},
      {.q = true, .q_rows = 13},
      {.k = true, .k_rows = 64},
      {.v = true, .v_rows = 64},
      {.v = true, .v_rows = 128, .one_batch = true},
      {.v_channel = true},
      {.v_mean = true},
      {.q = true, .k = true, .v = true, .v_channel = true, .v_mean = true, .q_rows = 1, .k_rows = 64, .v_rows = 64}};
  for (const scale_kinds& kinds : each) {
    CHECK(error_of(problem_of(kinds), giwa::full{}) < 1e-5);
    CHECK(error_of(problem_of(kinds), giwa::causal{}) < 1e-5);
    CHECK(error_of(problem_of(kinds, 150, 70), giwa::causal{}) < 1e-5);  // rows without keys
  }
}

TEST_CASE("the mean of v has the share of the weights that a sink leaves") {
  for (const float sink : {-2.0f, 3.0f, 60.0f}) {
    scaled_problem p = problem_of({.v = true, .v_channel = true, .v_mean = true});
    p.sink = sink, p.draw();
    CHECK(error_of(p, giwa::causal{}) < 1e-5);
  }
}

TEST_CASE("scales of masked keys do not reach a row, and those of seen keys do") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const float hostile : {NAN, inf, -inf, 3e38f, 0.0f, 1e-42f}) {
    scaled_problem p = problem_of({.k = true, .v = true, .k_rows = 64, .v_rows = 64}, 150, 150);
    for (std::size_t i = 0; i < 2; ++i)
      p.k_scales[2 * 2 + i] = p.v_scales[2 * 2 + i] = hostile;  // keys 128 to 149 of the first sequence
    std::vector<double> right, lse;
    p.answer([](int64 i, int64 j) { return j <= i; }, right, lse);
    outputs got;
    REQUIRE(with_views(p, got, [&](auto q, auto k, auto v, auto o, const auto& options) {
              return run_simt<size, size>(giwa::detail::attention_views<e4m3, float>{q, k, v, o, {}}, giwa::causal{},
                                          giwa::plain_score{}, options);
            }).ok());
    int64 wrong = 0, rows_with_nan = 0;
    for (std::size_t i = 0; i < 128 * 4 * size; ++i)
      wrong += !(std::fabs(static_cast<double>(got.o[i]) - right[i]) < 1e-4);
    for (std::size_t i = 128; i < 150; ++i) rows_with_nan += std::isnan(got.o[i * 4 * size]);
    CHECK(wrong == 0);
    if (std::isnan(hostile)) CHECK(rows_with_nan == 22);
  }
}

TEST_CASE("scales are refused by name") {
  scaled_problem p = problem_of({.q = true, .k = true, .v = true, .v_channel = true, .v_mean = true});
  const giwa::attention_scales good = p.scales();
  CHECK(refused(p, good) == "");
  giwa::attention_scales s = good;
  s.q = {p.q_scales.data(), {2, 1, 3}};
  CHECK(refused(p, s) == "scales.q");
  s = good, s.q_rows = 7;
  CHECK(refused(p, s) == "scales.q");
  s = good, s.q_rows = -1;
  CHECK(refused(p, s) == "scales.q_rows");
  s = good, s.k_rows = 32;
  CHECK(refused(p, s) == "scales.k_rows");
  s = good, s.k = {}, s.k_rows = 64;
  CHECK(refused(p, s) == "scales.k_rows");
  s = good, s.v_rows = 1;
  CHECK(refused(p, s) == "scales.v_rows");
  s = good, s.v = {p.v_scales.data(), {3, 1, 1}};
  CHECK(refused(p, s) == "scales.v");
  s = good, s.v_channel = {p.v_channel.data(), {2, 63}};
  CHECK(refused(p, s) == "scales.v_channel");
  s = good, s.v_mean = {p.v_mean.data(), {3, size}};
  CHECK(refused(p, s) == "scales.v_mean");
  s = good, s.v_mean = {nullptr, {2, size}};
  CHECK(refused(p, s) == "scales.v_mean");
  CHECK(refused(p, good, giwa::dropout(0.5f, 1)) == "scales.v_mean");
  s = good, s.v_mean = {};
  CHECK(refused(p, s, giwa::dropout(0.5f, 1)) == "");

  // They share no memory with what is written.
  const char* const names[] = {"scales.q", "scales.k", "scales.v", "scales.v_channel", "scales.v_mean"};
  const char* const written[] = {"the scales overlap o", "the scales overlap lse", "the scales overlap the workspace"};
  alignas(16) unsigned char workspace[64]{};
  for (int which = 0; which < 5; ++which)
    for (int with = 0; with < 3; ++with) {
      outputs got;
      const giwa::status shared =
          with_views(p, got, [&](auto q, auto k, auto v, auto o, giwa::attention_options options) {
            float* const at[] = {o.data(), options.lse.data(), reinterpret_cast<float*>(workspace)};
            const tensor_view<const float, 3> rows(at[with], {1, 1, 1});
            const tensor_view<const float, 2> columns(at[with], {1, 1});
            options.workspace = {workspace, {64}};
            options.scales = {};
            if (which < 3) (which == 0 ? options.scales.q : which == 1 ? options.scales.k : options.scales.v) = rows;
            if (which > 2) (which == 3 ? options.scales.v_channel : options.scales.v_mean) = columns;
            return giwa::attention_forward<size>(giwa::host, q, k, v, o, giwa::full{}, giwa::plain_score{}, options);
          });
      CHECK((std::string(shared.argument) == names[which] && std::string(shared.message) == written[with]));
    }

  // 16 bits have no scales.
  std::vector<giwa::fp16> x(64 * size, giwa::convert<giwa::fp16>{}(0.f)), o = x;
  const tensor_view<giwa::fp16, 4> view(x.data(), {1, 64, 1, size});
  giwa::attention_options options;
  options.scales.k = {p.k_scales.data(), {1, 1, 1}};
  const giwa::status of_16 = giwa::attention_forward<size>(
      giwa::host, view, view, view, tensor_view<giwa::fp16, 4>(o.data(), {1, 64, 1, size}), options);
  CHECK((!of_16.ok() && std::string(of_16.argument) == "scales"));
}

TEST_CASE("scales that are one for all rows") {
  using scales = giwa::detail::row_scales;
  const float x = 2;
  CHECK((scales{}.is_one() && scales{&x}.is_one() && scales{nullptr, 0, 64}.is_one()));
  CHECK(!scales{&x, 1, 64}.is_one());
}

TEST_CASE("an operand of bytes has each register of the accumulator, rounded") {
  using map = giwa::warpgroup_map<64>;
  giwa::register_tile<float, map> tile;
  for (int i = 0; i < map::registers; ++i) tile.value[i] = static_cast<float>(i % 15 - 7) + 0.01f;
  giwa::uint32 words[map::registers / 4] = {};
  giwa::detail::to_operand_of_bytes(tile, words);
  int wrong = 0;
  for (int word = 0; word < map::registers / 4; ++word)
    for (int byte = 0; byte < 4; ++byte) {
      const giwa::e4m3 rounded =
          giwa::convert<giwa::e4m3>{}(tile.value[word / 2 * 8 + word % 2 * 2 + byte / 2 * 4 + byte % 2]);
      wrong += std::memcmp(reinterpret_cast<const char*>(&words[word]) + byte, &rounded, 1) != 0;
    }
  CHECK(wrong == 0);
}

TEST_CASE("the orders of keys and columns of 8-bit operands are those of the fragments") {
  using giwa::detail::operand_key;
  using giwa::detail::transposed_column;
  using map = giwa::warpgroup_map<64>;
  // Lane l of an 8-bit left operand has places 4 (l % 4) + byte of each 16: word w of step t is the accumulator's columns there.
  int wrong = 0;
  bool seen[64] = {};
  for (int lane = 0; lane < 32; ++lane)
    for (int word = 0; word < 8; word += 2)
      for (int byte = 0; byte < 4; ++byte) {
        const int place = word / 4 * 32 + word % 4 / 2 * 16 + lane % 4 * 4 + byte;
        const int of_four[4] = {0, 1, 4, 5}, register_ = word / 2 * 8 + of_four[byte];
        wrong += map::column(lane, register_) != operand_key(place);
      }
  for (int place = 0; place < 64; ++place) seen[operand_key(place)] = true;
  for (const bool s : seen) wrong += !s;
  // A thread's accumulator columns of each 16 are four neighbours of V, in the order that store_transposed_columns() takes.
  for (int lane = 0; lane < 4; ++lane) {
    const int order[4] = {0, 4, 1, 5};
    for (int i = 0; i < 4; ++i) wrong += transposed_column(map::column(lane, order[i])) != 4 * lane + i;
  }
  CHECK(wrong == 0);
  CHECK((giwa::detail::nan_bytes(0x7fff7e80u) == 0xffff0000u && giwa::detail::nan_bytes(0x007f0138u) == 0x00ff0000u));
}
