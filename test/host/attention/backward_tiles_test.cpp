// SPDX-License-Identifier: MIT
// The Hopper kernels of attention_backward have tiles for all head sizes: what they put into shared memory fits. A policy asserts
// that when it compiles, so the test is that all of them are here.
#include <giwa/attention/problem/backward_options.hpp>
#include <giwa/attention/tuning/sm90.hpp>
#include <giwa/attention/work/list_tiles.hpp>
#include <giwa/grid/host_executor.hpp>
#include <giwa/grid/op.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <numeric>
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

/// Lists tiles by the warps of a block.
struct list_op {
  static constexpr int max_threads = 96, min_blocks = 1;
  struct params {
    int sequences, together;
    const int* tiles;  // of each sequence
    tile_list to;
  };
  using shared_storage = giwa::no_shared_storage;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    list_tiles(
        block, block.warp(), block.size() / 32, p.sequences, p.together, p.to, [&](int n) { return p.tiles[n]; },
        [](int n, int tile) {
          return listed_tile{n, tile};
        });
  }
};

}  // namespace

TEST_CASE("tiles of sequences are listed once, those of a sequence in ascending order, next to those that alternate") {
  giwa_test::random_sequence random(11);
  for (int problem = 0; problem < 80; ++problem) {
    const int sequences = 1 + static_cast<int>(random.below(problem % 3 == 0 ? 5 : 150));
    const int together = 1 << random.below(6), warps = 1 + static_cast<int>(random.below(3));
    std::vector<int> tiles;
    for (int i = 0; i < sequences; ++i)
      tiles.push_back(random.below(3) == 0 ? 0 : static_cast<int>(random.below(random.below(8) == 0 ? 40 : 4)));
    const int all = std::accumulate(tiles.begin(), tiles.end(), 0), room = problem % 10 == 9 ? all / 2 : all + 3;
    std::vector<listed_tile> listed(static_cast<std::size_t>(all + 4), {-1, -1});
    int count = -1;
    REQUIRE(giwa::launch(giwa::host, {.grid = 1, .block = 32 * warps}, list_op{},
                         {sequences, together, tiles.data(), {listed.data(), &count, static_cast<giwa::uint32>(room)}})
                .ok());
    REQUIRE(count == std::min(all, room));
    std::vector<int> next(tiles.size(), 0);
    for (int i = 0; i < count; ++i) {
      const listed_tile at = listed[static_cast<std::size_t>(i)];
      REQUIRE((at.sequence >= 0 && at.sequence < sequences));
      REQUIRE(at.tile == next[static_cast<std::size_t>(at.sequence)]++);
      if (i == 0) continue;
      const listed_tile before = listed[static_cast<std::size_t>(i - 1)];
      REQUIRE(before.sequence / together <= at.sequence / together);
      if (before.sequence / together == at.sequence / together)
        REQUIRE((before.tile < at.tile || (before.tile == at.tile && before.sequence < at.sequence)));
    }
    if (room >= all) CHECK(next == tiles);
    for (std::size_t i = static_cast<std::size_t>(room); i < listed.size(); ++i) CHECK(listed[i].tile == -1);
  }
}

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
