// SPDX-License-Identifier: MIT
// A random problem of attention_cached from a number: lengths, pages, queries, layouts and scales.
#ifndef GIWA_TEST_GPU_ATTENTION_CACHED_DRAW_HPP
#define GIWA_TEST_GPU_ATTENTION_CACHED_DRAW_HPP

#include <algorithm>
#include <climits>

#include "support/cached_case.hpp"
#include "support/environment.hpp"
#include "support/random.hpp"

namespace giwa_test {

/// Draws problems whose reference takes some milliseconds. `leaf` is the number of keys of a leaf.
class cached_drawer {
 public:
  cached_drawer(int number, int64 leaf) : random_(static_cast<uint64>(number) + 500000), leaf_(leaf) {
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
    const int64 most = very_long ? 70000 : rather_long ? 3000 : many ? 60 : 400;
    longest_ = 1 + random_.below(draws_small ? most / 4 : most);
    c_.kv_heads = very_long || rather_long || draws_small ? 1 : 1 + random_.below(3);
    c_.heads = c_.kv_heads * one_of({1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 128});
    sequences_ = 1 + random_.below(many ? (draws_small ? 8 : 64) : very_long ? 2 : draws_small ? 3 : 5);
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
    const auto rows = [&] { return std::max<int64>(1, (draws_small ? 12500 : 100000) / (c_.heads * longest_)); };
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

}  // namespace giwa_test

#endif
