// SPDX-License-Identifier: MIT
// attention_forward of e4m3 on a GPU for the fuzz program: every form of a call, and scales that may be hostile.
#include <algorithm>

#include "fuzz/fuzz.hpp"
#include "fuzz/modes.cuh"
#include "gpu/attention/e4m3_gpu.cuh"
#include "support/environment.hpp"
#include "support/random.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::fuzz;

// The largest error of a problem of few keys, whose weights do not average their rounding errors, and of one of few rows too.
constexpr double few_keys_rms = 0.09, few_rows_rms = 0.3;

/// Packed, padded or equal sequences, with layouts that TMA addresses and others.
case_options draw_form(uint64 seed) {
  random_sequence random(seed + 77);
  const int64 share = draws_small ? 4 : 1;
  case_options c =
      e4m3_options(1 + random.below(280 / share), 1 + random.below((random.below(4) == 0 ? 1400 : 500) / share), 1);
  c.seed = seed;
  c.kv_heads = 1 + random.below(2), c.heads = c.kv_heads * (1 + random.below(3)), c.batch = 1 + random.below(3);
  c.sinks = random.below(3) == 0, c.lse = random.below(4) != 0;
  c.spread = 0.5 * static_cast<double>(1 + random.below(3));
  c.align = random.below(2) == 0 ? giwa::alignment::bottom_right : giwa::alignment::top_left;
  const auto lengths = [&](int64 most) { return random.below(5) == 0 ? 0 : 1 + random.below(most); };
  const int64 form = random.below(4);
  if (form == 0) {
    const int64 sequences = 1 + random.below(5);
    for (int64 i = 0; i < sequences; ++i)
      c.q_lengths.push_back(lengths(c.seq_q)), c.k_lengths.push_back(lengths(c.seq_k));
    c.batch = 1;
  } else if (form == 1) {
    for (int64 b = 0; b < c.batch; ++b) {
      c.q_used.push_back(static_cast<int>(lengths(c.seq_q)));
      c.k_used.push_back(static_cast<int>(lengths(c.seq_k)));
    }
  }
  if (random.below(3) == 0)
    for (auto& of : c.layout) of = static_cast<case_layout>(random.below(static_cast<int64>(case_layout::count)));
  if (random.below(6) == 0) c.offset = static_cast<int>(random.below(20));
  if (seed / 3 % 3 == 0) c.layout[2] = case_layout::k_major;
  return c;
}

template <int HeadSize, class O, int HeadSizeV = HeadSize, class Mask>
std::string form_fault(uint64 seed, const Mask& mask) {
  case_options options = draw_form(seed);
  options.head_size = HeadSize, options.head_size_v = HeadSizeV;
  attention_case<e4m3, O> c(options);
  change(c, static_cast<e4m3_numbers>(seed % 11 < static_cast<uint64>(e4m3_numbers::count) ? seed % 11 : 0));
  const with_processors few(processors_of(seed));
  draw_delay(seed);
  if (const std::string refused = run_on_gpu<HeadSize, HeadSizeV>(c, mask, giwa::plain_score{}); !refused.empty())
    return refused + "; " + c.options.text();
  const attention_answers answers = answers_of(c, mask, giwa::plain_score{});
  return fault_against(c, answers, answers.lse.size() < 32 ? few_rows_rms : few_keys_rms);
}

/// One scale is hostile: 0, subnormal, infinity or NaN. What is finite in the reference is right.
template <int Size, class O, class Mask>
std::string scale_fault(uint64 seed, const Mask& mask) {
  random_sequence random(seed + 99);
  scaled_problem p;
  p.batch = 1 + random.below(2), p.kv_heads = 1 + random.below(2), p.heads = p.kv_heads * (1 + random.below(2));
  const int64 share = draws_small ? 4 : 1;
  p.queries = 1 + random.below(200 / share), p.keys = 1 + random.below(500 / share), p.size = Size;
  p.seed = static_cast<unsigned>(seed), p.mean = static_cast<float>(random.below(2));
  const auto yes = [&] { return random.below(2) == 0; };
  p.kinds = {.q = yes(), .k = yes(), .v = yes(), .v_channel = yes(), .v_mean = yes()};
  if (p.kinds.q) p.kinds.q_rows = yes() ? 1 : yes() ? 64 : 0;  // rows without scales are refused
  if (p.kinds.k) p.kinds.k_rows = yes() ? 64 : 0;
  p.kinds.one_batch = random.below(4) == 0, p.kinds.one_head = random.below(4) == 0;
  if (random.below(4) == 0) p.sink = 1;
  p.draw();
  std::vector<float>* const all[] = {&p.q_scales, &p.k_scales, &p.v_scales, &p.v_channel};
  std::vector<float>& hostile = *all[random.below(4)];
  constexpr float numbers[] = {0.f, 1e-40f, 0x1p-126f, INFINITY, NAN, -INFINITY};
  const float number = numbers[random.below(6)];
  if (!hostile.empty()) hostile[static_cast<std::size_t>(random.below(static_cast<int64>(hostile.size())))] = number;
  const auto got = run_scaled<Size, O>(p, mask);
  std::vector<double> right, right_lse;
  const auto sees = [&](int64 i, int64 j) {
    return mask(giwa::attention_coord{0, 0, static_cast<int>(i), static_cast<int>(j),
                                      static_cast<int>(i + p.keys - p.queries)});
  };
  p.answer(sees, right, right_lse);
  // Where the scale of a score is not finite, the row is not defined: the docs ask for finite scales. A row without keys may be
  // NaN where such a scale is that of all rows of q and k.
  const bool of_scores = &hostile == &p.q_scales || &hostile == &p.k_scales;
  const auto is_defined = [&](int64 row) {
    if (std::isfinite(number) || !of_scores) return true;
    const int64 h = row % p.heads, i = row / p.heads % p.queries, b = row / p.heads / p.queries;
    bool has_keys = false, finite = std::isfinite(p.scale_of(p.q_scales, p.queries, p.kinds.q_rows, p.heads, b, i, h));
    for (int64 j = 0; j < p.keys; ++j)
      if (sees(i, j)) {
        has_keys = true;
        finite = finite && std::isfinite(p.scale_of(p.k_scales, p.keys, p.kinds.k_rows, p.kv_heads, b, j,
                                                    h / (p.heads / p.kv_heads)));
      }
    return has_keys && finite;
  };
  const std::string about = " with a scale of " + std::to_string(number) + ", batch " + std::to_string(p.batch) +
                            ", queries " + std::to_string(p.queries) + ", keys " + std::to_string(p.keys) + ", heads " +
                            std::to_string(p.heads) + '/' + std::to_string(p.kv_heads);
  double largest = 0;
  for (const double x : right)
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double x = right[i], o = giwa::convert<double>{}(got.o[i]);
    const bool wrong = std::isfinite(x) && !(std::fabs(o - x) <= 0.1 * largest + 1e-6);
    if (wrong && is_defined(static_cast<int64>(i) / Size))
      return "element " + std::to_string(i) + ": " + std::to_string(o) + " instead of " + std::to_string(x) + about;
  }
  return "";
}

template <int Size, class O, class Mask>
std::string fault_of(uint64 seed, const Mask& mask) {
  return seed / 5 % 4 == 0 ? scale_fault<Size, O>(seed, mask) : form_fault<Size, O>(seed, mask);
}

std::string bytes_fault(uint64 seed) {
  switch (seed % 5) {
    case 0: return fault_of<64, fp16>(seed, giwa::causal{});
    case 1: return fault_of<128, float>(seed, giwa::full{});
    case 2: return fault_of<128, bf16>(seed, giwa::causal{});
    case 3: return fault_of<96, fp16>(seed, giwa::sliding_window{static_cast<int>(1 + seed % 300)});
    default: return fault_of<256, float>(seed, giwa::causal{});
  }
}
const fuzz_with added("e4m3", bytes_fault);

}  // namespace
