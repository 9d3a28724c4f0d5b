// SPDX-License-Identifier: MIT
// Register maps: each element of the tile has one place, rows and their slots agree, and lanes that share a row are neighbours.
#include <giwa/tile/register_map.hpp>

#include <algorithm>
#include <vector>

#include "support/catch.hpp"

using giwa::thread_map, giwa::tile_shape, giwa::warp_map, giwa::warpgroup_map;

namespace {

template <class Map>
void check_map() {
  constexpr int rows = Map::shape::rows, columns = Map::shape::columns;
  STATIC_REQUIRE(Map::threads * Map::registers == rows * columns);
  STATIC_REQUIRE(Map::rows * (Map::threads / Map::lanes) == rows);
  STATIC_REQUIRE((Map::lanes & (Map::lanes - 1)) == 0);
  STATIC_REQUIRE(Map::lanes <= 32);
  std::vector<int> held(static_cast<std::size_t>(rows * columns), 0);
  std::vector<std::vector<int>> threads_of_row(static_cast<std::size_t>(rows));
  for (int thread = 0; thread < Map::threads; ++thread) {
    std::vector<int> in_slot(static_cast<std::size_t>(Map::rows), 0);
    for (int i = 0; i < Map::registers; ++i) {
      const int slot = Map::slot(i);
      REQUIRE((slot >= 0 && slot < Map::rows));
      const int row = Map::row(thread, slot), column = Map::column(thread, i);
      REQUIRE((row >= 0 && row < rows && column >= 0 && column < columns));
      ++held[static_cast<std::size_t>(row * columns + column)];
      ++in_slot[static_cast<std::size_t>(slot)];
    }
    for (int slot = 0; slot < Map::rows; ++slot) {
      CHECK(in_slot[static_cast<std::size_t>(slot)] == Map::registers / Map::rows);
      threads_of_row[static_cast<std::size_t>(Map::row(thread, slot))].push_back(thread);
      // What a reduction over lanes relies on: who shares this row has it in the same slot.
      for (int mask = 1; mask < Map::lanes; ++mask) CHECK(Map::row(thread ^ mask, slot) == Map::row(thread, slot));
    }
  }
  CHECK(std::count(held.begin(), held.end(), 1) == rows * columns);
  for (const std::vector<int>& threads : threads_of_row) {  // in order, as the loop above is
    REQUIRE(threads.size() == static_cast<std::size_t>(Map::lanes));
    CHECK(threads.front() % Map::lanes == 0);
    CHECK(threads.back() == threads.front() + Map::lanes - 1);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("a register map gives each element one place", "", (warp_map<16, 8>), (warp_map<16, 64>),
                   (warp_map<64, 32>), (warp_map<48, 24>), (warpgroup_map<16>), (warpgroup_map<176>),
                   (warpgroup_map<256>), (thread_map<tile_shape<32, 32>, 8, 32>),
                   (thread_map<tile_shape<64, 96>, 16, 8, 4>), (thread_map<tile_shape<12, 6>, 4, 2>),
                   (thread_map<tile_shape<20, 40>, 10, 1, 8>), (thread_map<tile_shape<8, 256>, 8, 32, 2>)) {
  check_map<TestType>();
}

TEST_CASE("a warpgroup's map is that of wgmma's accumulator") {
  using map = warpgroup_map<80>;
  using fragment = giwa::wgmma_accumulator_fragment<80>;
  for (int thread = 0; thread < 128; ++thread)
    for (int i = 0; i < map::registers; ++i)
      CHECK(giwa::tile_position{map::row(thread, map::slot(i)), map::column(thread, i)} ==
            fragment::position(thread, i));
}

TEST_CASE("the maps of a group count its threads from any multiple of them") {
  for (int i = 0; i < warpgroup_map<32>::registers; ++i) {
    CHECK(warpgroup_map<32>::row(128 + 77, 1) == warpgroup_map<32>::row(77, 1));
    CHECK(warpgroup_map<32>::column(256 + 77, i) == warpgroup_map<32>::column(77, i));
    CHECK(warp_map<16, 32>::column(64 + 13, i) == warp_map<16, 32>::column(13, i));
  }
}
