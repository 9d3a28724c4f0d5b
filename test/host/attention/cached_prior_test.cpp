// SPDX-License-Identifier: MIT
// The prior of attention_cached: the result for keys that are not in the cache, merged as if they were.
#include "host/attention/cached_check.hpp"
#include "support/call_options.hpp"
#include "support/same_bits.hpp"

namespace {

using namespace giwa_test;

cached_case_options flat_case(bool packed) {
  cached_case_options c;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_size = 16;
  c.head_size_v = 8;
  c.queries = packed ? std::vector<int64>{1, 5, 0, 2} : std::vector<int64>{3, 3, 3, 3};
  c.packed = packed;
  c.keys = 150;
  c.sinks = true;
  return c;
}

/// Runs a case in parts; `in_place`: o and lse are the prior. Empty, or the error.
template <class T, class O>
std::string run_in_parts(cached_case<T, T, O>& c, const std::vector<int64>& cuts, bool in_place) {
  cached_case<T, T, O> other(c.options);
  auto& second = in_place ? c : other;
  const auto run = [](const auto& views, const giwa::cached_options& options) {
    return cached_of<16, 8>(giwa::host, views, giwa::full{}, giwa::plain_score{}, options);
  };
  const giwa::status s =
      giwa_test::run_in_parts(c.views(), c.call_options(), second.o.view(), second.lse.view(), cuts, run);
  return s.ok() ? "" : giwa::format_status(s).c_str();
}

}  // namespace

TEST_CASE("parts of the keys in turn give the result for all of them") {
  faults f;
  for (const bool packed : {false, true})
    for (const std::vector<int64>& cuts : {std::vector<int64>{70}, {0}, {150}, {1, 2, 149}, {64, 128}})
      for (const bool in_place : {false, true}) {
        cached_case<float> c(flat_case(packed));
        f.add(run_in_parts(c, cuts, in_place));
        f.add(judge<float>(c, answers_of<float>(c, giwa::full{}, giwa::plain_score{})).failure);
        cached_case<giwa::fp16> rounded(flat_case(packed));
        f.add(run_in_parts(rounded, {70}, in_place));
        f.add(judge<giwa::fp16>(rounded, answers_of<giwa::fp16>(rounded, giwa::full{}, giwa::plain_score{})).failure);
      }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("in place gives the same bits, and the reference the same numbers") {
  for (const bool packed : {false, true}) {
    cached_case<float> apart(flat_case(packed)), here(flat_case(packed));
    REQUIRE(run_in_parts(apart, {50, 100}, false) == "");
    REQUIRE(run_in_parts(here, {50, 100}, true) == "");
    CHECK(same_bits(apart.o.memory, here.o.memory));
    CHECK(same_bits(apart.lse.memory, here.lse.memory));

    // The reference, with a prior in double precision, against all keys at once.
    const auto a = apart.views();
    auto prior = new_buffer<double, 4>(apart.o.extents, case_layout::contiguous, 0, true), o = prior;
    auto lse = new_buffer<float, 3>(apart.lse.extents, case_layout::contiguous, 0, true), prior_lse = lse;
    const auto run = [&](const giwa::kv_cache<const float>& cache, case_buffer<double, 4>& to,
                         const giwa::cached_options& options) {
      return a.is_packed() ? giwa::attention_cached_reference(
                                 giwa::host, cache, without_batch(a.q), without_batch(to.view()), giwa::full{},
                                 giwa::plain_score{}, giwa_test::with(options, giwa_test::sequences_of(a.packed)))
                           : giwa::attention_cached_reference(giwa::host, cache, a.q, to.view(), giwa::full{},
                                                              giwa::plain_score{}, options);
    };
    giwa::cached_options options = apart.call_options();
    options.lse = prior_lse.view();
    REQUIRE(run(part_of(a.cache, 0, 40), prior, options).ok());
    options.lse = lse.view();
    options.sinks = {};
    options.prior = {prior.view(), prior_lse.view()};
    REQUIRE(run(part_of(a.cache, 40, 150), o, options).ok());
    const attention_answers answers = answers_of<float>(apart, giwa::full{}, giwa::plain_score{});
    const auto merged = o.elements<double>();
    double worst = 0;
    for (std::size_t i = 0; i < merged.size(); ++i) {
      CHECK(std::isnan(merged[i]) == std::isnan(answers.o[i]));
      if (!std::isnan(merged[i])) worst = std::max(worst, std::abs(merged[i] - answers.o[i]));
    }
    CHECK(worst < 4e-7);  // the lse between the parts is a float
  }
}

TEST_CASE("a prior without keys, and nothing but a prior") {
  cached_case<float> plain(flat_case(true)), c(flat_case(true));
  const auto a = c.views();
  auto prior = new_buffer<float, 4>(c.o.extents, case_layout::contiguous, 0, true);  // NaN
  auto lse = new_buffer<float, 3>(c.lse.extents, case_layout::padded, 0, true);
  lse.for_each([&](std::size_t at) { lse.memory[at] = -HUGE_VALF; });
  giwa::cached_options options = c.call_options();
  options.prior = {prior.view(), lse.view()};
  REQUIRE(cached_of<16, 8>(giwa::host, a, giwa::full{}, giwa::plain_score{}, options).ok());
  REQUIRE(cached_of<16, 8>(giwa::host, plain.views(), giwa::full{}, giwa::plain_score{}, plain.call_options()).ok());
  CHECK(same_bits(c.o.memory, plain.o.memory));
  CHECK(same_bits(c.lse.memory, plain.lse.memory));

  // Sequences of no keys, without sinks: the prior, to the bit.
  for (float& x : prior.memory) x = 0;
  int64 n = 0;
  prior.for_each([&](std::size_t at) { prior.memory[at] = static_cast<float>(normal_at(giwa::philox(5), n++)); });
  lse.for_each([&](std::size_t at) { lse.memory[at] = static_cast<float>(at % 50) - 25.25f; });
  const int none[] = {0, -3, 0, INT_MIN};
  auto empty = a;
  empty.cache.lengths = none;
  options.sinks = {};
  c.clear_outputs();
  REQUIRE(cached_of<16, 8>(giwa::host, empty, giwa::full{}, giwa::plain_score{}, options).ok());
  for (int64 row = c.q_offsets[0]; row < c.q_offsets[4]; ++row)
    for (int64 head = 0; head < 6; ++head) {
      CHECK(c.lse.view()(0, head, row) == lse.view()(0, head, row));
      for (int64 d = 0; d < 8; ++d) CHECK(c.o.view()(0, row, head, d) == prior.view()(0, row, head, d));
    }
}

TEST_CASE("a prior that is not finite makes its row NaN, and no other") {
  for (const float strange : {NAN, HUGE_VALF}) {
    cached_case<float> c(flat_case(false));
    auto prior = new_buffer<float, 4>(c.o.extents, case_layout::contiguous, 0, true);
    auto lse = new_buffer<float, 3>(c.lse.extents, case_layout::contiguous, 0, true);
    for (float& x : prior.memory) x = 0;
    for (float& x : lse.memory) x = 1;
    lse.view()(1, 2, 0) = strange;
    prior.view()(3, 1, 4, 5) = NAN;  // an element
    giwa::cached_options options = c.call_options();
    options.prior = {prior.view(), lse.view()};
    REQUIRE(cached_of<16, 8>(giwa::host, c.views(), giwa::full{}, giwa::plain_score{}, options).ok());
    for (int64 b = 0; b < 4; ++b)
      for (int64 i = 0; i < 3; ++i)
        for (int64 h = 0; h < 6; ++h) {
          const bool bad_row = b == 1 && i == 0 && h == 2, bad_element = b == 3 && i == 1 && h == 4;
          CHECK(std::isnan(c.lse.view()(b, h, i)) == bad_row);
          for (int64 d = 0; d < 8; ++d)
            CHECK(std::isnan(c.o.view()(b, i, h, d)) == (bad_row || (bad_element && d == 5)));
        }
  }
}
