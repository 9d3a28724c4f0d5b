// SPDX-License-Identifier: MIT
// Fragment maps: each is a bijection between (lane, element) and the matrix, and an accumulator is the next product's A.
#include <giwa/tile/fragment.hpp>

#include <tuple>
#include <vector>

#include "support/catch.hpp"

using giwa::tile_position;

namespace {

static_assert(!(tile_position{1, 2} == tile_position{1, 3}) && !(tile_position{1, 2} == tile_position{0, 2}));
// A few places as the figures of the PTX ISA give them.
static_assert(giwa::mma_a_fragment::position(5, 0) == tile_position{1, 2});
static_assert(giwa::mma_a_fragment::position(5, 3) == tile_position{9, 3});
static_assert(giwa::mma_a_fragment::position(31, 4) == tile_position{7, 14});
static_assert(giwa::mma_a_fragment::position(31, 7) == tile_position{15, 15});
static_assert(giwa::mma_b_fragment::position(5, 1) == tile_position{3, 1});
static_assert(giwa::mma_b_fragment::position(5, 2) == tile_position{10, 1});
static_assert(giwa::mma_accumulator_fragment::position(5, 3) == tile_position{9, 3});
static_assert(giwa::mma_a_tf32_fragment::position(5, 1) == tile_position{9, 1});
static_assert(giwa::mma_a_tf32_fragment::position(5, 2) == tile_position{1, 5});
static_assert(giwa::mma_b_tf32_fragment::position(5, 1) == tile_position{5, 1});
static_assert(giwa::wgmma_accumulator_fragment<64>::position(100, 6) == tile_position{3 * 16 + 9, 8});

using every_fragment =
    std::tuple<giwa::matrix_8x8_fragment, giwa::mma_a_fragment, giwa::mma_b_fragment, giwa::mma_accumulator_fragment,
               giwa::mma_a_tf32_fragment, giwa::mma_b_tf32_fragment, giwa::wgmma_accumulator_fragment<8>,
               giwa::wgmma_accumulator_fragment<176>, giwa::wgmma_accumulator_fragment<256>, giwa::wgmma_a_fragment,
               giwa::wgmma_a_tf32_fragment>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("a fragment holds each element of its matrix once", "", every_fragment) {
  using fragment = TestType;
  STATIC_REQUIRE(fragment::rows * fragment::columns == fragment::lanes * fragment::elements);
  std::vector<int> held(static_cast<std::size_t>(fragment::rows * fragment::columns), 0);
  for (int lane = 0; lane < fragment::lanes; ++lane)
    for (int element = 0; element < fragment::elements; ++element) {
      const tile_position at = fragment::position(lane, element);
      CAPTURE(lane, element, at.row, at.column);
      REQUIRE((0 <= at.row && at.row < fragment::rows && 0 <= at.column && at.column < fragment::columns));
      REQUIRE(++held[static_cast<std::size_t>(at.row * fragment::columns + at.column)] == 1);
    }
}

TEST_CASE("an accumulator is the 16-bit A of the next product") {
  for (int thread = 0; thread < 128; ++thread)
    for (int element = 0; element < 64; ++element) {
      const tile_position p = giwa::wgmma_accumulator_fragment<128>::position(thread, element);
      const tile_position a = giwa::wgmma_a_fragment::position(thread, element % 8);
      CAPTURE(thread, element);
      REQUIRE(p.row == a.row);
      REQUIRE(p.column == element / 8 * 16 + a.column);
    }
}
