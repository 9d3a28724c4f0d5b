// SPDX-License-Identifier: MIT
// attention_cached on a GPU against the reference: problems drawn at random from a number. GIWA_TEST_DRAWS is how many, from
// GIWA_TEST_FIRST_DRAW on.
#include <algorithm>
#include <climits>
#include <cstdio>

#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;
using giwa::fp16;

namespace {

/// Draws problems whose reference takes some milliseconds. `leaf` is the number of keys of a leaf.
class drawer {
 public:
  drawer(int number, int64 leaf) : random_(static_cast<uint64>(number) + 500000), leaf_(leaf) {
    c_.seed = static_cast<uint64>(number);
  }

  cached_case_options draw(bool scales) {
    draw_heads_and_lengths();
    draw_queries();
    constexpr case_layout layouts[] = {case_layout::contiguous, case_layout::heads_first, case_layout::padded};
    for (case_layout& l : c_.layout) l = layouts[random_.below(3)];
    c_.offset = one_in(5) ? 1 + static_cast<int>(random_.below(8)) : 0;
    c_.spread = one_in(8) ? 4 : 1;
    c_.lse = !one_in(5);
    c_.sinks = one_in(4);
    if (one_in(6)) c_.scale = 0.3f;
    if (scales)
      c_.k_scales = static_cast<int>(random_.below(9)) - 1, c_.v_scales = static_cast<int>(random_.below(9)) - 1;
    return c_;
  }

 private:
  bool one_in(int64 n) { return random_.below(n) == 0; }
  template <std::size_t N>
  int64 one_of(const int64 (&list)[N]) {
    return list[random_.below(N)];
  }

  void draw_heads_and_lengths() {
    const bool very_long = one_in(200), rather_long = one_in(10);
    const bool many = !very_long && !rather_long && one_in(10);
    longest_ = 1 + random_.below(very_long ? 70000 : rather_long ? 3000 : many ? 60 : 400);
    c_.kv_heads = very_long || rather_long ? 1 : 1 + random_.below(3);
    c_.heads = c_.kv_heads * one_of({1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 128});
    sequences_ = many ? 1 + random_.below(64) : very_long ? 1 + random_.below(2) : 1 + random_.below(5);
    c_.page_size = one_of({0, 0, 0, 1, 2, 3, 5, 7, 8, 16, 16, 24, 48, 64, 100, 128, 256, 1000});
    c_.keys = longest_;
    if (c_.page_size > 0) {
      c_.most = giwa::ceil_div(longest_, c_.page_size);
      c_.lists = one_in(3);
      c_.shared = one_in(5);
      c_.strange = one_in(6) ? 1 + static_cast<int>(random_.below(6)) : 0;
    }
    const int64 page = c_.page_size;
    for (int64 b = 0; b < sequences_; ++b) {
      const int64 edge = one_of({0, 1, page, leaf_, 4 * leaf_, 16 * leaf_, longest_}) + random_.below(3) - 1;
      const int64 n = one_in(40) ? INT_MAX : one_in(40) ? INT_MIN : one_in(4) ? edge : random_.below(longest_ + 1);
      c_.lengths.push_back(static_cast<int>(n));
    }
    if (c_.page_size == 0 && one_in(8)) c_.lengths.clear();
  }

  /// As many queries and heads as their reference has time for.
  void draw_queries() {
    c_.packed = one_in(2);
    const int64 most = one_in(12) ? 300 : 8;
    const auto rows = [&] { return std::max<int64>(1, 100000 / (c_.heads * longest_)); };
    while (rows() < sequences_ && c_.heads > c_.kv_heads) c_.heads = giwa::round_up(c_.heads / 2, c_.kv_heads);
    const int64 each = std::clamp<int64>(rows() / sequences_, 1, most);
    c_.queries.assign(static_cast<std::size_t>(sequences_), 1 + random_.below(each));
    if (c_.packed)
      for (int64& n : c_.queries) n = random_.below(each + 1);
  }

  random_sequence random_;
  int64 leaf_, longest_ = 0, sequences_ = 0;
  cached_case_options c_;
};

/// Empty, or what is wrong with problem `number` in this form.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string fault_of(int number, const Mask& mask = {}, const Score& score = {}) {
  const cached_case_options c =
      drawer(number, giwa::detail::leaf_keys_of(HeadSize, HeadSizeV, sizeof(Element))).draw(sizeof(Element) == 1);
  const std::string fault = cached_fault_on_gpu_of<T, HeadSize, HeadSizeV, Element, O>(c, mask, score);
  return fault.empty() ? "" : "draw " + std::to_string(number) + ": " + fault;
}

std::string fault_of_draw(int number) {
  switch (number % 8) {
    case 0: return fault_of<fp16, 128>(number);
    case 1: return fault_of<fp16, 128>(number, causal::bottom_right);
    case 2: return fault_of<bf16, 64>(number, giwa::sliding_window{1 + number % 200, giwa::alignment::bottom_right});
    case 3: return fault_of<fp16, 80, 40, fp16, float>(number, by_distance{}, own_score{});
    case 4: return fault_of<bf16, 192, 128>(number, causal::bottom_right);
    case 5: return fault_of<bf16, 128, 128, e4m3>(number, causal::bottom_right);
    case 6: return fault_of<fp16, 256>(number);
    default: return fault_of<float, 64>(number, causal::bottom_right);
  }
}

}  // namespace

TEST_CASE("drawn problems") {
  const int first = number_of("GIWA_TEST_FIRST_DRAW", 0), count = number_of("GIWA_TEST_DRAWS", small_mode() ? 16 : 80);
  int faults = 0;
  for (int i = first; i < first + count && faults < 5; ++i) {
    const std::string fault = fault_of_draw(i);
    CHECK(fault == "");
    faults += fault.empty() ? 0 : 1;
  }
  std::printf("draws %d to %d: %d faults\n", first, first + count - 1, faults);
}
