// SPDX-License-Identifier: MIT
// The order of tiles: each is visited once, in bands, whatever the shape.
#include <giwa/grid/tile_order.hpp>

#include <limits>
#include <vector>

#include "support/catch.hpp"

using giwa::tile_order;

static_assert(tile_order{3, 4, 2}[0].row == 0 && tile_order{3, 4, 2}[1].row == 1 && tile_order{3, 4, 2}[2].column == 1);

TEST_CASE("each tile is visited once, band by band") {
  for (int rows = 1; rows <= 20; ++rows)
    for (int columns = 1; columns <= 20; ++columns)
      for (const int band : {1, 2, 3, 4, 7, 8, 16, 21, 1000}) {
        const tile_order order{rows, columns, band};
        CAPTURE(rows, columns, band);
        REQUIRE(order.count() == rows * columns);
        std::vector<int> visits(static_cast<std::size_t>(rows * columns), 0);
        bool right = true;
        tile_order::position before{0, 0};
        for (int i = 0; i < order.count(); ++i) {
          const tile_order::position at = order[i];
          REQUIRE((at.row >= 0 && at.row < rows && at.column >= 0 && at.column < columns));
          ++visits[static_cast<std::size_t>(at.row * columns + at.column)];
          // Down a column of the band, then to the next column, then to the next band.
          const bool down =
              at.row == before.row + 1 && at.column == before.column && at.row / band == before.row / band;
          const bool across =
              at.column == before.column + 1 && at.row / band == before.row / band && at.row % band == 0;
          const bool next = at.row / band == before.row / band + 1 && at.row % band == 0 && at.column == 0 &&
                            before.column == columns - 1;
          right = right && (i == 0 ? at.row == 0 && at.column == 0 : down || across || next);
          before = at;
        }
        REQUIRE(right);
        REQUIRE(visits == std::vector<int>(visits.size(), 1));
      }
}

TEST_CASE("the largest orders do not overflow") {
  constexpr int largest = std::numeric_limits<int>::max();
  for (const int band : {1, 2, 16, 1 << 20, largest}) {
    CAPTURE(band);
    const tile_order wide{1, largest, band}, high{largest, 1, band}, square{46340, 46340, band};
    for (const int i : {0, 1, largest / 2, largest - 1}) {
      CHECK((wide[i].row == 0 && wide[i].column == i));
      CHECK((high[i].row == i && high[i].column == 0));
    }
    const tile_order::position last = square[square.count() - 1];
    CHECK((last.row == 46339 && last.column == 46339));
  }
}
