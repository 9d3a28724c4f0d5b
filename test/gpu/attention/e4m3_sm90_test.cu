// SPDX-License-Identifier: MIT
// attention_forward of e4m3 on a GPU with its scales: long sums, repairs, NaN, and rows that are alone or in company.
#include <algorithm>

#include "gpu/attention/e4m3_gpu.cuh"
#include "support/catch.hpp"
#include "support/same_bits.hpp"

using namespace giwa_test;

namespace {

/// The relative RMS error of o against fp64, for every `every`-th query; 1 where NaN is elsewhere or lse is off.
template <int Size, class O, class Mask>
double error_of(const scaled_problem& p, const Mask& mask, int64 every = 1) {
  const auto sees = [&](int64 i, int64 j) {
    return mask(giwa::attention_coord{0, 0, static_cast<int>(i), static_cast<int>(j),
                                      static_cast<int>(i + p.keys - p.queries)});
  };
  std::vector<double> right, right_lse;
  p.answer(sees, right, right_lse, every);
  const outputs<O> got = run_scaled<Size, O>(p, mask);
  std::vector<float> o, lse;
  for (const O x : got.o) o.push_back(giwa::convert<float>{}(x));
  for (std::size_t i = 0; i < got.lse.size(); ++i) lse.push_back(std::isnan(right_lse[i]) ? NAN : got.lse[i]);
  const distance of_o = distance_of(o, right, right_lse, p.queries, p.heads, Size),
                 of_lse = distance_of(lse, right_lse, right_lse, p.queries, p.heads, 1);
  // Scores are sums of the tensor cores with 13 bits, and lse has the size of the largest ones.
  double largest = 4;
  for (const double x : right_lse)
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  return of_o.other_nan + of_lse.other_nan == 0 && of_lse.largest < 1e-3 + 0x1p-10 * largest ? of_o.relative() : 1;
}

template <int Size>
scaled_problem problem_of(int64 queries, int64 keys, float mean, const scale_kinds& kinds = {}, float deviation = 1) {
  scaled_problem p;
  p.batch = 2, p.queries = queries, p.keys = keys, p.heads = 4, p.kv_heads = 2, p.size = Size;
  p.mean = mean, p.kinds = kinds, p.deviation = deviation, p.seed = static_cast<unsigned>(queries * 7 + keys + Size);
  p.draw();
  return p;
}

constexpr double rounding_of_p = 0.035;  // of weights to e4m3, for values whose mean is 0

template <int Size>
void check_size() {
  INFO("head size " << Size);
  CHECK(error_of<Size, float>(problem_of<Size>(64, 128, 0), giwa::full{}) < rounding_of_p);
  CHECK(error_of<Size, fp16>(problem_of<Size>(200, 333, 0), giwa::full{}) < rounding_of_p);
  CHECK(error_of<Size, bf16>(problem_of<Size>(333, 1000, 1), giwa::causal{}) < rounding_of_p);
  CHECK(error_of<Size, float>(problem_of<Size>(300, 120, 1), giwa::causal{}) < rounding_of_p);  // rows without keys
  CHECK(error_of<Size, float>(problem_of<Size>(150, 1700, 1), giwa::sliding_window{700}) < rounding_of_p);
}

}  // namespace

TEST_CASE("e4m3 by head size, with every type of output") {
  check_size<64>();
  check_size<80>();
  check_size<96>();
  check_size<128>();
  check_size<192>();
  check_size<256>();
}

TEST_CASE("scales of e4m3 on a GPU") {
  const scale_kinds each[] = {
      {.q = true, .k = true, .v = true},
      {.q = true, .k = true, .v = true, .one_batch = true, .one_head = true},
      {.q = true, .k = true, .v = true, .v_channel = true, .v_mean = true, .q_rows = 1, .k_rows = 64},
      {.q = true, .q_rows = 13},
      {.v = true, .v_rows = 64},
      {.v_mean = true}};
  for (const scale_kinds& kinds : each) {
    CHECK(error_of<128, float>(problem_of<128>(200, 1111, 1, kinds), giwa::causal{}) < rounding_of_p);
    CHECK(error_of<64, fp16>(problem_of<64>(200, 1111, 1, kinds), giwa::full{}) < rounding_of_p);
    CHECK(error_of<256, float>(problem_of<256>(100, 700, 1, kinds), giwa::causal{}) < rounding_of_p);
  }
  scaled_problem sink = problem_of<128>(200, 600, 1, {.v_channel = true, .v_mean = true});
  sink.sink = 1, sink.draw();
  CHECK(error_of<128, float>(sink, giwa::causal{}) < rounding_of_p);
}

TEST_CASE("long sums of e4m3 keep their digits") {
  scaled_problem p = problem_of<128>(64, 65536, 1);
  p.batch = 1, p.heads = p.kv_heads = 1, p.draw();
  CHECK(error_of<128, float>(p, giwa::full{}, 4) < 0.015);  // one sum of the tensor cores: 0.44
  scaled_problem narrow = problem_of<64>(64, 65536, 1);
  narrow.batch = 1, narrow.heads = narrow.kv_heads = 1, narrow.draw();
  CHECK(error_of<64, float>(narrow, giwa::full{}, 4) < 0.015);
  scaled_problem wide = problem_of<256>(64, 65536, 1);
  wide.batch = 1, wide.heads = wide.kv_heads = 1, wide.draw();
  CHECK(error_of<256, float>(wide, giwa::full{}, 4) < 0.015);
}

TEST_CASE("scores that grow from tile to tile raise m") {
  for (const float step : {0.0f, 0.7f, 2.0f, 6.0f, 30.0f, 90.0f}) {  // in units of log2 for each 96 keys, about
    scaled_problem p = problem_of<128>(200, 1500, 1, {.k = true, .k_rows = 64});
    for (std::size_t i = 0; i < p.k_scales.size(); ++i)
      p.k_scales[i] = 0.05f + step * static_cast<float>(i / 2 % 24) / 8;
    CHECK(error_of<128, float>(p, giwa::full{}, 3) < 0.06);
  }
}

TEST_CASE("a row of e4m3 has the same bits alone and in company") {
  scaled_problem p = problem_of<128>(192, 3000, 1, {}, 4);
  p.batch = 1, p.draw();
  const auto all = run_scaled<128, float>(p, giwa::full{});
  scaled_problem few = p;
  few.queries = 64;
  few.q.assign(p.q.begin() + 64 * 4 * 128, p.q.begin() + 128 * 4 * 128);
  const auto some = run_scaled<128, float>(few, giwa::full{});
  CHECK(same_bits(some.o, std::vector<float>(all.o.begin() + 64 * 4 * 128, all.o.begin() + 128 * 4 * 128)));
}

TEST_CASE("NaN of e4m3 in masked and in seen values") {
  scaled_problem p = problem_of<128>(300, 700, 1);
  for (const std::size_t at : {std::size_t{3 * 256 + 5}, std::size_t{500 * 256 + 128 + 7}, std::size_t{699 * 256}})
    p.v[at] = e4m3::from_bits(at % 2 != 0 ? 0xff : 0x7f);
  p.k[(std::size_t{700} + 400) * 256] = e4m3::from_bits(0x7f);
  p.q[(std::size_t{250} * 4 + 3) * 128 + 9] = e4m3::from_bits(0xff);
  CHECK(error_of<128, float>(p, giwa::causal{}) < rounding_of_p);
  CHECK(error_of<128, bf16>(p, giwa::sliding_window{90}) < rounding_of_p);
  CHECK(error_of<128, float>(p, giwa::full{}) < rounding_of_p);
}

TEST_CASE("a scale of keys that a row does not see does not reach it") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  scaled_problem p = problem_of<128>(150, 150, 1, {.k = true, .k_rows = 64});
  const auto right = run_scaled<128, float>(p, giwa::causal{});
  constexpr std::size_t seen =
      std::size_t{128} * 4 * 128;  // elements of o of rows that see keys 0 to 127 of the first sequence
  for (const float hostile : {NAN, inf, -inf, 3e38f, 0.0f, 1e-42f}) {
    p.k_scales[2 * 2] = p.k_scales[2 * 2 + 1] = hostile;  // keys 128 to 149
    const auto got = run_scaled<128, float>(p, giwa::causal{});
    CHECK(same_bits(std::vector<float>(got.o.begin(), got.o.begin() + seen),
                    std::vector<float>(right.o.begin(), right.o.begin() + seen)));
    const bool has_nan = std::isnan(got.o[seen + 5]);
    CHECK((!std::isnan(hostile) || has_nan));
    CHECK((hostile != 0 || !has_nan));
  }
}

TEST_CASE("rows without keys are zeros whatever the scales are") {
  const auto fault = [](scale_kinds kinds, float hostile) {
    scaled_problem p = problem_of<128>(90, 20, 1, kinds);  // the first 70 queries see no key
    for (auto* scales : {&p.q_scales, &p.k_scales, &p.v_scales}) std::fill(scales->begin(), scales->end(), hostile);
    const auto got = run_scaled<128, float>(p, giwa::causal{});
    for (std::size_t i = 0; i < got.o.size(); ++i)
      if (i / (4 * 128) % 90 < 70 && got.o[i] != 0) return "element " + std::to_string(i);
    const bool seen = std::isfinite(hostile) && !kinds.v;
    return std::string(seen && !(error_of<128, float>(p, giwa::causal{}) < rounding_of_p) ? "rows with keys" : "");
  };
  for (const float hostile : {NAN, HUGE_VALF, -HUGE_VALF}) CHECK(fault({.v = true}, hostile) == "");
  for (const float hostile : {0.0f, 1e-40f, -1e-40f, 0x1p-126f}) {
    CHECK(fault({.q = true}, hostile) == "");
    CHECK(fault({.k = true}, hostile) == "");
    CHECK(fault({.q = true, .q_rows = 1}, hostile) == "");
    CHECK(fault({.k = true, .k_rows = 64}, hostile) == "");
  }
}

TEST_CASE("inputs and scales of e4m3 that the kernel before the call writes late") {
  if (kernels_start_early()) CHECK(early_reads_are_seen());
  const scale_kinds all = {
      .q = true, .k = true, .v = true, .v_channel = true, .v_mean = true, .q_rows = 1, .k_rows = 64};
  const scaled_problem p = problem_of<128>(300, 700, 1, all), wide = problem_of<256>(150, 300, 1, all);
  const auto on_time = run_scaled<128, float>(p, giwa::causal{}),
             is_late = run_scaled<128, float>(p, giwa::causal{}, true);
  CHECK((same_bits(on_time.o, is_late.o) && same_bits(on_time.lse, is_late.lse)));
  const auto wide_on_time = run_scaled<256, float>(wide, giwa::causal{}),
             wide_late = run_scaled<256, float>(wide, giwa::causal{}, true);
  CHECK((same_bits(wide_on_time.o, wide_late.o) && same_bits(wide_on_time.lse, wide_late.lse)));
}
