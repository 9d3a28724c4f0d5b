// SPDX-License-Identifier: MIT
// The Hopper kernels of attention_backward have tiles for all head sizes: what they put into shared memory fits. A policy asserts
// that when it compiles, so the test is that all of them are here.
#include <giwa/attention/problem/backward_options.hpp>
#include <giwa/attention/tuning/sm90.hpp>

#include "support/catch.hpp"

#include <utility>
#include <vector>

using namespace giwa::detail;

namespace {

constexpr int step = 8, largest = 256, largest_split = 128;

struct summary {
  int policies = 0, largest_bytes = 0;

  template <class Policy>
  constexpr void add() {
    ++policies;
    largest_bytes = Policy::shared_bytes > largest_bytes ? Policy::shared_bytes : largest_bytes;
  }
};

template <int HeadSize, int HeadSizeV>
constexpr void add_pair(summary& s) {
  s.add<sm90_backward_policy<gradient::of_q, HeadSize, HeadSizeV>>();
  s.add<sm90_backward_policy<gradient::of_k_and_v, HeadSize, HeadSizeV>>();
  if constexpr (has_kernel_of_all(HeadSize, HeadSizeV))
    s.add<sm90_backward_policy<gradient::of_all, HeadSize, HeadSizeV>>();
}
template <int HeadSize, int HeadSizeV>
constexpr void add_split_pair(summary& s) {
  s.add<sm90_split_backward_policy<gradient::of_q, HeadSize, HeadSizeV>>();
  if constexpr (split_backward_sums_both(HeadSize, HeadSizeV)) {
    s.add<sm90_split_backward_policy<gradient::of_k_and_v, HeadSize, HeadSizeV>>();
  } else {
    s.add<sm90_split_backward_policy<gradient::of_k, HeadSize, HeadSizeV>>();
    s.add<sm90_split_backward_policy<gradient::of_v, HeadSize, HeadSizeV>>();
  }
}

/// Calls f<i, j>() for all i, j of [0, Count).
template <int Count, class F>
constexpr void for_pairs(const F& f) {
  [&]<int... Is>(std::integer_sequence<int, Is...>) {
    (..., [&]<int I, int... Js>(std::integer_sequence<int, I>, std::integer_sequence<int, Js...>) {
      (..., f.template operator()<I, Js>());
    }(std::integer_sequence<int, Is>{}, std::make_integer_sequence<int, Count>{}));
  }(std::make_integer_sequence<int, Count>{});
}

}  // namespace

TEST_CASE("gradients in fp16 and bf16: every pair of head sizes fits in shared memory") {
  constexpr summary s = [] {
    summary all;
    for_pairs<largest / step>([&]<int I, int J>() { add_pair<(I + 1) * step, (J + 1) * step>(all); });
    return all;
  }();
  CHECK(s.policies == 2 * 32 * 32 + 16 * 16 - 8 * 8);
  CHECK(s.largest_bytes <= sm90_backward_shared::most);
  CHECK(s.largest_bytes > 200 << 10);
}

TEST_CASE("gradients in fp32: every pair of head sizes fits in shared memory") {
  constexpr summary s = [] {
    summary all;
    for_pairs<largest_split / step>([&]<int I, int J>() { add_split_pair<(I + 1) * step, (J + 1) * step>(all); });
    return all;
  }();
  CHECK(s.policies >= 2 * 16 * 16);
  CHECK(s.largest_bytes <= sm90_backward_shared::most);
  CHECK(s.largest_bytes > 200 << 10);
}

TEST_CASE("the registers of a part of dq are apart and fill it") {
  std::vector<bool> found(dq_parts::floats);
  for (int thread = 0; thread < 128; ++thread)
    for (int i = 0; i < dq_parts::floats / (4 * 128); ++i) {
      const int at = dq_parts::offset(thread, i);
      REQUIRE((at >= 0 && at % 4 == 0 && at + 4 <= dq_parts::floats));
      CHECK_FALSE(found[static_cast<std::size_t>(at)]);
      found[static_cast<std::size_t>(at)] = true;
    }
}

TEST_CASE("128 columns of q and k with 64 of v leave no room for a staged dq after three stages") {
  using policy = sm90_backward_policy<gradient::of_q, 128, 64>;
  STATIC_REQUIRE(policy::stages_x == 3);
  STATIC_REQUIRE(!policy::stages_output);
  STATIC_REQUIRE(sm90_backward_policy<gradient::of_q, 128, 128>::stages_output);
}
