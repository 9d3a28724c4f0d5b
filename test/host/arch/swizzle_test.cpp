// SPDX-License-Identifier: MIT
// The swizzles: bijections that move 16-byte chunks within their row, as the PTX ISA's tables have them.
#include <giwa/arch/swizzle.hpp>

#include <set>
#include <vector>

#include "support/catch.hpp"

using giwa::span_of, giwa::swizzle, giwa::swizzled_offset;

namespace {
constexpr swizzle all[] = {swizzle::none, swizzle::bytes_32, swizzle::bytes_64, swizzle::bytes_128};
}

TEST_CASE("a swizzle permutes the chunks of each row") {
  for (const swizzle s : all) {
    const int span = span_of(s), size = 64 * span;
    CAPTURE(span);
    std::vector<int> from(static_cast<std::size_t>(size), -1);
    for (int offset = 0; offset < size; ++offset) {
      const int to = swizzled_offset(s, offset);
      REQUIRE((to >= 0 && to < size));
      REQUIRE(from[static_cast<std::size_t>(to)] == -1);
      from[static_cast<std::size_t>(to)] = offset;
      REQUIRE(to / span == offset / span);        // in its row
      REQUIRE(to % 16 == offset % 16);            // a chunk stays together
      REQUIRE(swizzled_offset(s, to) == offset);  // the swizzle undoes itself
      REQUIRE(to - offset == swizzled_offset(s, offset % (8 * span)) - offset % (8 * span));  // repeats after 8 rows
    }
  }
}

TEST_CASE("chunks move as the tables of the PTX ISA say") {
  // Row r of the pattern: where chunk 0, 1, … lies. The rows of 64 and 32 bytes come by two and by four.
  for (int row = 0; row < 8; ++row)
    for (int chunk = 0; chunk < 8; ++chunk) {
      CAPTURE(row, chunk);
      CHECK(swizzled_offset(swizzle::bytes_128, row * 128 + chunk * 16) == row * 128 + (chunk ^ row) * 16);
      if (chunk < 4)
        CHECK(swizzled_offset(swizzle::bytes_64, row * 64 + chunk * 16) == row * 64 + (chunk ^ (row / 2)) * 16);
      if (chunk < 2)
        CHECK(swizzled_offset(swizzle::bytes_32, row * 32 + chunk * 16) == row * 32 + (chunk ^ (row / 4)) * 16);
      CHECK(swizzled_offset(swizzle::none, row * 16 + chunk) == row * 16 + chunk);
    }
}

TEST_CASE("the same chunk of eight rows of 128 bytes covers all banks") {
  for (int chunk = 0; chunk < 8; ++chunk) {
    std::set<int> places;
    for (int row = 0; row < 8; ++row) places.insert(swizzled_offset(swizzle::bytes_128, row * 128 + chunk * 16) % 128);
    CHECK(places.size() == 8);
  }
}
