// SPDX-License-Identifier: MIT
// attention_forward on the CPU of e4m3: all numbers, masks, modifiers and layouts, NaN, and the bits of fp32.
#include <cmath>

#include "host/attention/check.hpp"
#include "host/attention/e4m3_cases.hpp"
#include "support/same_bits.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

constexpr int nan_bits[2] = {0x7f, 0xff};

/// Against the reference, and against the call in fp32 with the same numbers.
template <int HeadSize, class O, class Mask = giwa::full, class Score = giwa::plain_score>
std::string fault_of_e4m3(case_options options, e4m3_numbers numbers, const Mask& mask = {}, const Score& score = {}) {
  options.head_size = options.head_size_v = HeadSize;
  attention_case<e4m3, O> c(options);
  change(c, numbers);
  if (const std::string failure = fault<HeadSize>(c, mask, score); !failure.empty()) return failure;
  attention_case<float, O> wide = widened(c);
  if (const std::string failure = run<HeadSize>(wide, mask, score); !failure.empty()) return failure;
  return same_bits(wide.o.memory, c.o.memory) && same_bits(wide.lse.memory, c.lse.memory)
             ? ""
             : "other bits than in fp32; " + c.options.text();
}

}  // namespace

TEST_CASE("every e4m3 number is widened exactly") {
  std::vector<e4m3> all;
  for (int i = 0; i < 256; ++i) all.push_back(e4m3_of(i));
  std::vector<float> wide(256);
  giwa::detail::host_widen(giwa::detail::fastest_loops(), all.data(), wide.data(), 256);
  int wrong = 0;
  for (std::size_t i = 0; i < 256; ++i) {
    const auto right = static_cast<float>(all[i]);
    wrong += std::isnan(right) ? !std::isnan(wide[i]) : std::memcmp(&wide[i], &right, sizeof right) != 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("e4m3 in several head sizes, with outputs of each type and hostile numbers") {
  faults f;
  for (int i = 0; i < static_cast<int>(e4m3_numbers::count); ++i) {
    const auto numbers = static_cast<e4m3_numbers>(i);
    case_options c = e4m3_options(i == 0 ? 1 : 45, i == 1 ? 64 : 97, 64);
    c.layout = {static_cast<case_layout>(i), static_cast<case_layout>(i + 1), static_cast<case_layout>(i + 2 - i / 3),
                static_cast<case_layout>(i % 3)};
    c.offset = i, c.sinks = i == 2;
    f.add(fault_of_e4m3<64, fp16>(c, numbers));
    f.add(fault_of_e4m3<72, bf16>(c, numbers, giwa::causal{}));
    f.add(fault_of_e4m3<128, float>(c, numbers, giwa::causal{}));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("a K-major v of e4m3") {
  faults f;
  for (const int64 keys : {1, 5, 64, 97, 130}) {
    case_options c = e4m3_options(45, keys, 64);
    c.layout[2] = case_layout::k_major;
    attention_case<e4m3, float> by_columns(c);
    f.add(fault<64>(by_columns, giwa::causal{}));
    c.layout[2] = case_layout::contiguous;
    attention_case<e4m3, float> by_rows(c);
    f.add(run<64>(by_rows, giwa::causal{}));
    CHECK(same_bits(by_rows.o.memory, by_columns.o.memory));
    c.layout[2] = case_layout::k_major, c.head_size_v = 40;
    attention_case<e4m3, fp16> narrow(c);
    f.add((fault<64, 40>(narrow, giwa::full{})));
  }
  CHECK_NO_FAULTS(f);
  case_options c = e4m3_options(45, 50, 64);
  c.layout[1] = case_layout::k_major;  // of k, which must have contiguous rows
  attention_case<e4m3, float> of_keys(c);
  CHECK(run<64>(of_keys, giwa::full{}).find("contiguous") != std::string::npos);
  c.layout = {};
  c.layout[2] = case_layout::k_major;
  attention_case<fp16, float> wide(c);
  CHECK(run<64>(wide, giwa::full{}).find("contiguous") != std::string::npos);
}

TEST_CASE("e4m3 under every mask and some score modifiers") {
  faults f;
  const case_options c = e4m3_options(70, 97, 64);
  std::vector<int> q_ids(2 * 70), k_ids(2 * 97), counts{3, 80};
  for (std::size_t i = 0; i < q_ids.size(); ++i) q_ids[i] = static_cast<int>(i % 70 / 9);
  for (std::size_t i = 0; i < k_ids.size(); ++i) k_ids[i] = static_cast<int>(i % 97 / 11);
  const auto check = [&](const auto& mask, const auto& score) {
    f.add(fault_of_e4m3<64, fp16>(c, e4m3_numbers::normal, mask, score));
  };
  const giwa::plain_score plain;
  check(giwa::keys_back{5}, plain);
  check(giwa::keys_ahead{5}, plain);
  check(giwa::sliding_window{9}, plain);
  check(giwa::prefix{40} | giwa::causal{}, plain);
  check(giwa::prefix{0, counts.data()}, plain);
  check(giwa::segment_ids{q_ids.data(), k_ids.data(), 70, 97, true}, plain);
  check(!giwa::causal{}, plain);
  check(!giwa::full{}, plain);
  const std::vector<float> slopes{0.5f, 0.25f, 0.1f, 0.01f};
  check(giwa::causal{}, giwa::alibi{slopes.data()});
  check(giwa::full{}, giwa::softcap{2});
  check(giwa::causal{}, giwa::dropout(0.25f, 3));
  CHECK_NO_FAULTS(f);
}

TEST_CASE("packed sequences of e4m3, and lengths of their own") {
  faults f;
  case_options c = e4m3_options(1, 1, 72);
  c.q_lengths = {20, 0, 65, 1}, c.k_lengths = {30, 5, 70, 0};
  f.add(fault_of_e4m3<72, fp16>(c, e4m3_numbers::normal, giwa::causal{}));
  f.add(fault_of_e4m3<72, float>(c, e4m3_numbers::all_bits));
  case_options padded = e4m3_options(70, 97, 128);
  padded.q_used = {70, 13}, padded.k_used = {64, 97};
  f.add(fault_of_e4m3<128, bf16>(padded, e4m3_numbers::normal, giwa::causal{}));
  CHECK_NO_FAULTS(f);
}

TEST_CASE("a NaN of e4m3 reaches the rows that see it, and no other") {
  for (const int bits : nan_bits)
    for (const int which : {0, 1, 2}) {
      case_options options = e4m3_options(40, 40, 64);
      attention_case<e4m3, float> c(options);
      (which == 0 ? c.q : which == 1 ? c.k : c.v).view()(1, 20, 1, 5) = e4m3_of(bits);
      CHECK(fault<64>(c, giwa::causal{}) == "");
      const auto o = c.o.view();
      int nan_rows = 0;
      for (int64 b = 0; b < 2; ++b)
        for (int64 i = 0; i < 40; ++i)
          for (int64 h = 0; h < 4; ++h) nan_rows += std::isnan(o(b, i, h, 5));
      // Of q one row; of k and v, for the two heads that share them, the rows from 20 on.
      CHECK(nan_rows == (which == 0 ? 1 : 40));
    }
}

TEST_CASE("factors by hand: those of q and k are in the scale, that of v multiplies o") {
  constexpr float q_factor = 0.5f, k_factor = 4, v_factor = 0.25f;  // powers of two: the products are exact
  attention_case<e4m3, float> c(e4m3_options(33, 50, 64));
  attention_case<float, float> wide = widened(c);
  for (float& x : wide.q.memory) x *= q_factor;
  for (float& x : wide.k.memory) x *= k_factor;
  for (float& x : wide.v.memory) x *= v_factor;
  c.options.scale = giwa::attention_scale(q_factor * k_factor * 0.125f);
  wide.options.scale = giwa::attention_scale(0.125f);
  REQUIRE(run<64>(c, giwa::causal{}).empty());
  REQUIRE(run<64>(wide, giwa::causal{}).empty());
  c.o.for_each([&](std::size_t at) { c.o.memory[at] *= v_factor; });
  CHECK(same_bits(c.o.elements<float>(), wide.o.elements<float>()));
}

TEST_CASE("e4m3 runs on tensor cores on Hopper alone, and needs no workspace for itself") {
  giwa::attention_problem p{2, 40, 40, 4, 2, 128, 128, 1};
  for (const int capability : {0, 75, 80, 90, 120}) {
    const auto path = giwa::supports(p, capability);
    CHECK((path.ok() && path.value == (capability == 90 ? giwa::attention_path::sm90 : giwa::attention_path::simt)));
  }
  CHECK(giwa::workspace_bytes(p) == 8);
  p.element_bytes = 3;
  CHECK(!giwa::supports(p, 90).ok());
  CHECK(!giwa::supports(giwa::cached_problem{.sequences = 1,
                                             .keys = 8,
                                             .heads = 1,
                                             .kv_heads = 1,
                                             .head_size = 64,
                                             .head_size_v = 64,
                                             .element_bytes = 1,
                                             .cache_bytes = 1},
                        90)
             .ok());
}
