// SPDX-License-Identifier: MIT
// The second tiles of the Hopper kernel: they fit into a multiprocessor, and calls with little work take fewer queries of them.
#include <giwa/attention/tuning/sm90.hpp>
#include <giwa/attention/work/work_tiles.hpp>

#include <utility>

#include "support/catch.hpp"

using namespace giwa::detail;

namespace {

template <int HeadSize, bool IsCausal>
constexpr bool fits() {
  using policies = sm90_second_policy_of<HeadSize, HeadSize, IsCausal>;
  if constexpr (policies::exists)
    return policies::type::fits;
  else
    return true;
}
template <int... HeadSizes>
constexpr bool all_fit(std::integer_sequence<int, HeadSizes...>) {
  return ((fits<HeadSizes + 1, false>() && fits<HeadSizes + 1, true>()) && ...);
}
static_assert(all_fit(std::make_integer_sequence<int, 256>{}));

// A tile that the call names comes before that of causal calls.
using named = sm90_masked_policy_of<256, 256, giwa::tile_shape<128, 64>, true>::type;
using chosen = sm90_masked_policy_of<256, 256, struct automatic, true>::type;
static_assert(named::block_n == 64 && named::uses_pingpong && chosen::block_n == 80 && !chosen::uses_pingpong);

template <int HeadSize, bool IsCausal>
using second = sm90_second_policy_of<HeadSize, HeadSize, IsCausal>;

constexpr bool narrow(giwa::int64 heads, giwa::int64 queries, bool equal_work) {
  return is_narrow_faster(heads, queries, 192, equal_work, 132);
}

}  // namespace

TEST_CASE("the numbers of keys with a second tile") {
  CHECK(!second<128, true>::exists);
  CHECK(!second<128, false>::suits(8191));
  CHECK(second<128, false>::suits(8192));
  CHECK(!second<113, false>::suits(8191));
  CHECK(second<113, false>::suits(giwa::int64{1} << 31));
  CHECK(!second<65, true>::suits(4095));
  CHECK(second<96, false>::suits(4096));
  CHECK(!second<256, true>::suits(256));
  CHECK(second<241, false>::suits(512));
  CHECK(!second<256, false>::suits(513));
  CHECK(!second<64, true>::exists);
  CHECK(!second<97, true>::exists);
  CHECK(!second<112, true>::exists);
  CHECK(!second<144, true>::exists);
  CHECK(!second<240, true>::exists);
  CHECK(!sm90_second_policy_of<96, 128, true>::exists);
}

TEST_CASE("only the tiles of 192 queries may have fewer") {
  CHECK(second<80, false>::type::narrows);
  CHECK(second<96, true>::type::narrows);
  CHECK(!second<128, true>::type::narrows);
  CHECK(!second<256, true>::type::narrows);
  CHECK(!sm90_masked_policy_of<64, 64, void, true>::type::narrows);
}

TEST_CASE("calls with little work take fewer queries of a tile") {
  CHECK(narrow(8, 4096, false));
  CHECK(narrow(4, 8192, false));
  CHECK(narrow(32, 512, false));
  CHECK(!narrow(8, 8192, false));
  CHECK(!narrow(64, 4096, false));
  CHECK(narrow(32, 256, false));  // two work tiles of a head in any case, of the same size
  CHECK(narrow(4, 4096, true));   // one wave of work tiles in any case
  CHECK(!narrow(8, 3000, true));  // one wave, or two
  CHECK(!narrow(0, 4096, true));
}
