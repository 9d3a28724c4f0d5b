// SPDX-License-Identifier: MIT
// Layouts: each is a bijection into its storage, keeps its runs together, and meets the bank conflicts that it promises.
#include <giwa/numeric/precision.hpp>
#include <giwa/tile/shared_tile.hpp>

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <vector>

#include "bank_model.hpp"
#include "support/catch.hpp"

using giwa::padded;
using giwa::paired;
using giwa::row_major;
using giwa::shared_tile;
using giwa::swizzle;
using giwa::swizzled;
using giwa::tile_shape;
using giwa::transposable;
using giwa_test::turns;

namespace {

using giwa::fp16;
using swizzled_128 = swizzled<swizzle::bytes_128>;
using swizzled_64 = swizzled<swizzle::bytes_64>;
using swizzled_32 = swizzled<swizzle::bytes_32>;
using swizzled_none = swizzled<swizzle::none>;

struct twelve_bytes {
  int a, b, c;
};

static_assert(tile_shape<3, 5>::rows == 3 && tile_shape<3, 5>::columns == 5 && tile_shape<3, 5>::size == 15);

using tile = shared_tile<fp16, tile_shape<64, 128>, swizzled_128>;
static_assert(std::is_trivially_default_constructible_v<tile> && std::is_trivially_copyable_v<tile>);
static_assert(sizeof(tile) == 64 * 128 * 2 && alignof(tile) == 1024 && tile::bytes == 64 * 128 * 2 && tile::has_chunks);
static_assert(tile::rows == 64 && tile::columns == 128 && std::is_same_v<tile::value_type, fp16>);
static_assert(std::is_same_v<tile::layout, swizzled_128> && std::is_same_v<tile::shape, tile_shape<64, 128>>);
static_assert(alignof(shared_tile<fp16, tile_shape<8, 32>, swizzled_64>) == 512);
static_assert(alignof(shared_tile<fp16, tile_shape<8, 16>, swizzled_32>) == 256);
static_assert(alignof(shared_tile<fp16, tile_shape<8, 16>>) == 128, "a tensor copy can write it");
static_assert(shared_tile<float, tile_shape<3, 5>, padded<2>>::bytes == 3 * 7 * 4);

// Runs, in elements: 16 bytes at most, a power of two, and no more than rows and padding allow.
template <class T, int Columns, class Layout>
constexpr int run = shared_tile<T, tile_shape<8, Columns>, Layout>::placement::run;
static_assert(run<fp16, 64, row_major> == 8 && run<fp16, 12, row_major> == 4 && run<fp16, 7, row_major> == 1);
static_assert(run<float, 64, row_major> == 4 && run<double, 64, row_major> == 2 && run<char, 48, row_major> == 16);
static_assert(run<fp16, 64, padded<8>> == 8 && run<fp16, 64, padded<2>> == 2 && run<float, 64, padded<1>> == 1);
static_assert(run<fp16, 64, paired> == 8 && run<float, 8, paired> == 4 && run<double, 4, paired> == 2);
static_assert(shared_tile<fp16, tile_shape<4, 64>, paired>::bytes == 2 * (2 * 128 + 32));
static_assert(alignof(shared_tile<fp16, tile_shape<4, 64>, paired>) == 32);
static_assert(run<twelve_bytes, 64, row_major> == 1 && run<fp16, 64, transposable> == 2);
static_assert(run<float, 64, swizzled_32> == 4 && run<char, 128, swizzled_128> == 16);
static_assert(!shared_tile<fp16, tile_shape<8, 12>>::has_chunks && shared_tile<fp16, tile_shape<8, 16>>::has_chunks);

template <class T, int Rows, int Columns, class Layout>
struct example {
  using value = T;
  using placement = typename Layout::template of<T, tile_shape<Rows, Columns>>;
  using type = shared_tile<T, tile_shape<Rows, Columns>, Layout>;
  static constexpr int rows = Rows, columns = Columns, bytes = static_cast<int>(sizeof(T));
  static int at(int row, int column) { return bytes * placement::offset(row, column); }
};

using every_layout = std::tuple<
    example<float, 1, 1, row_major>, example<fp16, 64, 128, row_major>, example<float, 7, 5, row_major>,
    example<twelve_bytes, 9, 6, row_major>, example<float, 7, 5, padded<3>>, example<fp16, 64, 128, padded<8>>,
    example<fp16, 8, 12, padded<4>>, example<double, 8, 6, padded<1>>, example<fp16, 64, 128, paired>,
    example<fp16, 2, 16, paired>, example<float, 24, 40, paired>, example<double, 10, 4, paired>,
    example<char, 16, 96, paired>, example<fp16, 64, 128, swizzled_128>, example<fp16, 8, 64, swizzled_128>,
    example<float, 40, 96, swizzled_128>, example<char, 16, 256, swizzled_128>, example<double, 24, 32, swizzled_128>,
    example<fp16, 64, 96, swizzled_64>, example<float, 8, 16, swizzled_64>, example<fp16, 24, 48, swizzled_32>,
    example<float, 16, 8, swizzled_32>, example<fp16, 16, 24, swizzled_none>, example<float, 33, 32, transposable>,
    example<float, 64, 48, transposable>, example<float, 10, 7, transposable>, example<float, 64, 8, transposable>,
    example<fp16, 64, 64, transposable>, example<fp16, 64, 96, transposable>, example<fp16, 70, 6, transposable>,
    example<float, 5, 1, transposable>>;

// Where a tensor copy puts a byte, as the tables of the PTX ISA draw it: row by row of a slab, chunk by chunk.
int drawn_offset(int span, int rows, int row, int byte) {
  const int slab = byte / span, chunk = byte % span / 16;
  const int moved = span == 128  ? chunk ^ row % 8
                    : span == 64 ? chunk ^ row / 2 % 4
                    : span == 32 ? chunk ^ row / 4 % 2
                                 : chunk;
  return slab * rows * span + row * span + moved * 16 + byte % 16;
}

template <class T, int Rows, int Columns, swizzle Swizzle>
bool as_drawn() {
  using x = example<T, Rows, Columns, swizzled<Swizzle>>;
  bool same = true;
  for (int row = 0; row < Rows; ++row)
    for (int column = 0; column < Columns; ++column)
      same = same && x::at(row, column) == drawn_offset(span_of(Swizzle), Rows, row, column * x::bytes);
  return same;
}

// The most turns of any of these accesses of a warp or a part of it, over all places where they may begin.

// 32 elements of a column, from any row.
template <class X>
int down_a_column() {
  int most = 0;
  for (int column = 0; column < X::columns; ++column)
    for (int first = 0; first + 32 <= X::rows; ++first) {
      std::vector<int> offsets;
      for (int lane = 0; lane < 32; ++lane) offsets.push_back(X::at(first + lane, column));
      most = std::max(most, turns(offsets, X::bytes));
    }
  return most;
}
// A warp's accesses of `per_lane` elements each, along the rows and on to the next.
template <class X>
int along_the_rows(int per_lane = 1) {
  int most = 0;
  for (int first = 0; first + 32 * per_lane <= X::rows * X::columns; first += 32 * per_lane) {
    std::vector<int> offsets;
    for (int lane = 0; lane < 32; ++lane) {
      const int i = first + lane * per_lane;
      offsets.push_back(X::at(i / X::columns, i % X::columns));
    }
    most = std::max(most, turns(offsets, per_lane * X::bytes));
  }
  return most;
}
// 8 rows of 16 bytes: a matrix of ldmatrix, or 16-byte accesses down a column.
template <class X>
int eight_rows() {
  int most = 0;
  for (int column = 0; column < X::columns; column += 16 / X::bytes)
    for (int first = 0; first + 8 <= X::rows; ++first) {
      std::vector<int> offsets;
      for (int lane = 0; lane < 8; ++lane) offsets.push_back(X::at(first + lane, column));
      most = std::max(most, turns(offsets, 16));
    }
  return most;
}

// Whether every 32 bytes of a row, from a multiple of 32 on, lie in 32 aligned bytes of the tile.
template <class X>
bool keeps_sectors() {
  constexpr int count = 32 / X::bytes;
  bool kept = X::placement::alignment % 32 == 0;
  for (int row = 0; row < X::rows; ++row)
    for (int column = 0; column < X::columns; ++column)
      kept = kept && X::at(row, column) / 32 == X::at(row, column - column % count) / 32;
  return kept;
}

// Whether multiples of the periods may be added to a place as the layout says.
template <class X>
bool repeats() {
  using p = typename X::placement;
  bool same = true;
  for (int row = 0; row < X::rows; ++row)
    for (int column = 0; column < X::columns; ++column) {
      const int r = row % p::period_rows, c = column % p::period_columns;
      same = same && p::offset(row, column) == p::offset(r, c) + (row - r) * p::pitch + (column - c);
    }
  return same;
}

}  // namespace

TEST_CASE("the model of shared memory finds the conflicts that are known") {
  std::vector<int> same(32, 8), neighbours, two_apart, a_row_apart, chunks, chunks_apart;
  for (int lane = 0; lane < 32; ++lane) {
    neighbours.push_back(4 * lane);
    two_apart.push_back(8 * lane);
    a_row_apart.push_back(128 * lane);
    chunks.push_back(16 * lane);
    chunks_apart.push_back(32 * lane);
  }
  CHECK(turns(same, 4) == 1);
  CHECK(turns(neighbours, 4) == 1);
  CHECK(turns(two_apart, 4) == 2);
  CHECK(turns(two_apart, 8) == 1);
  CHECK(turns(a_row_apart, 4) == 32);
  CHECK(turns(a_row_apart, 8) == 16);
  CHECK(turns(a_row_apart, 16) == 8);
  CHECK(turns(chunks, 16) == 1);
  CHECK(turns(chunks_apart, 16) == 2);
}

TEMPLATE_LIST_TEST_CASE("a layout is a bijection into its storage and keeps its runs together", "", every_layout) {
  using x = TestType;
  using placement = typename x::placement;
  STATIC_REQUIRE(x::type::bytes == placement::elements * x::bytes);
  STATIC_REQUIRE(alignof(typename x::type) == placement::alignment);
  STATIC_REQUIRE(x::columns % placement::run == 0);
  std::vector<int> used(static_cast<std::size_t>(placement::elements), 0);
  typename x::type t;
  for (int row = 0; row < x::rows; ++row)
    for (int column = 0; column < x::columns; ++column) {
      const int offset = placement::offset(row, column), first = column / placement::run * placement::run;
      CAPTURE(row, column, offset);
      REQUIRE((0 <= offset && offset < placement::elements));
      REQUIRE(++used[static_cast<std::size_t>(offset)] == 1);
      REQUIRE(offset == placement::offset(row, first) + column - first);
      REQUIRE((column != first || offset % placement::run == 0));
      const typename x::type& constant = t;
      const bool found = &t(row, column) == t.data() + offset && &constant(row, column) == constant.data() + offset;
      REQUIRE(found);
      if constexpr (x::type::has_chunks) {
        const auto* const chunk = t.data() + offset - (column - first);
        const bool found_chunk = t.chunk(row, first) == chunk && constant.chunk(row, first) == chunk;
        REQUIRE(found_chunk);
      }
    }
}

TEST_CASE("a swizzled tile lies as a tensor copy writes it") {
  CHECK(as_drawn<fp16, 64, 128, swizzle::bytes_128>());
  CHECK(as_drawn<float, 24, 96, swizzle::bytes_128>());
  CHECK(as_drawn<char, 8, 128, swizzle::bytes_128>());
  CHECK(as_drawn<fp16, 40, 96, swizzle::bytes_64>());
  CHECK(as_drawn<float, 16, 48, swizzle::bytes_64>());
  CHECK(as_drawn<fp16, 64, 80, swizzle::bytes_32>());
  CHECK(as_drawn<double, 16, 8, swizzle::bytes_32>());
  CHECK(as_drawn<fp16, 64, 80, swizzle::none>());
}

TEST_CASE("row-major tiles conflict as they say") {
  CHECK(along_the_rows<example<float, 64, 64, row_major>>() == 1);
  CHECK(along_the_rows<example<fp16, 64, 64, row_major>>(8) == 1);
  CHECK(down_a_column<example<float, 64, 64, row_major>>() == 32);
  CHECK(down_a_column<example<float, 64, 24, row_major>>() == 8);
  CHECK(down_a_column<example<float, 64, 33, row_major>>() == 1);
  CHECK(eight_rows<example<fp16, 64, 64, row_major>>() == 8);
  CHECK(eight_rows<example<fp16, 64, 32, row_major>>() == 4);
}

TEST_CASE("padding frees what it promises to free") {
  CHECK(eight_rows<example<fp16, 64, 64, padded<8>>>() == 1);
  CHECK(eight_rows<example<fp16, 64, 80, padded<8>>>() == 1);
  CHECK(eight_rows<example<float, 64, 40, padded<4>>>() == 1);
  CHECK(along_the_rows<example<fp16, 64, 64, padded<8>>>(8) == 1);
  CHECK(down_a_column<example<float, 64, 64, padded<1>>>() == 1);
  CHECK(down_a_column<example<float, 64, 26, padded<1>>>() == 1);
  CHECK(down_a_column<example<fp16, 64, 64, padded<2>>>() == 1);
  CHECK(along_the_rows<example<float, 64, 64, padded<1>>>() == 1);
}

TEST_CASE("pairs of rows are free of conflicts, and keep the sectors of 32 bytes that a copy reads") {
  CHECK(eight_rows<example<fp16, 64, 64, paired>>() == 1);
  CHECK(eight_rows<example<fp16, 64, 80, paired>>() == 1);
  CHECK(eight_rows<example<fp16, 32, 16, paired>>() == 1);
  CHECK(eight_rows<example<float, 64, 40, paired>>() == 1);
  CHECK(along_the_rows<example<fp16, 64, 64, paired>>(8) == 1);
  CHECK(keeps_sectors<example<fp16, 64, 80, paired>>());
  CHECK(keeps_sectors<example<float, 24, 40, paired>>());
  CHECK(keeps_sectors<example<fp16, 64, 128, swizzled_128>>());
  CHECK_FALSE(keeps_sectors<example<fp16, 64, 128, padded<8>>>());
}

TEST_CASE("the offsets of pairs of rows repeat with their periods") {
  CHECK(repeats<example<fp16, 64, 80, paired>>());
  CHECK(repeats<example<float, 24, 40, paired>>());
}

TEST_CASE("swizzled tiles are free of conflicts down columns of chunks, and along rows of one slab") {
  CHECK(eight_rows<example<fp16, 64, 128, swizzled_128>>() == 1);
  CHECK(eight_rows<example<float, 24, 96, swizzled_128>>() == 1);
  CHECK(eight_rows<example<fp16, 64, 96, swizzled_64>>() == 1);
  CHECK(eight_rows<example<fp16, 64, 48, swizzled_32>>() == 1);
  CHECK(eight_rows<example<fp16, 64, 48, swizzled_none>>() == 1);

  CHECK(along_the_rows<example<fp16, 64, 128, swizzled_128>>(8) == 1);
  CHECK(along_the_rows<example<float, 64, 96, swizzled_128>>(4) == 1);
  CHECK(along_the_rows<example<float, 64, 96, swizzled_128>>(1) == 1);
  CHECK(along_the_rows<example<fp16, 64, 32, swizzled_64>>(8) == 1);
  CHECK(along_the_rows<example<fp16, 64, 16, swizzled_32>>(8) == 1);
  // Slabs begin at the same bank: narrower spans conflict where a row goes on in the next slab.
  CHECK(along_the_rows<example<fp16, 64, 128, swizzled_64>>(8) == 2);
  CHECK(along_the_rows<example<fp16, 64, 128, swizzled_32>>(8) == 4);
}

TEST_CASE("transposable tiles are free of conflicts both ways") {
  CHECK(down_a_column<example<float, 64, 64, transposable>>() == 1);
  CHECK(along_the_rows<example<float, 64, 64, transposable>>() == 1);
  CHECK(down_a_column<example<float, 64, 32, transposable>>() == 1);
  CHECK(along_the_rows<example<float, 64, 32, transposable>>() == 1);
  CHECK(down_a_column<example<float, 64, 48, transposable>>() == 1);
  CHECK(along_the_rows<example<float, 64, 48, transposable>>() == 1);
  CHECK(down_a_column<example<float, 70, 40, transposable>>() == 1);
  CHECK(down_a_column<example<float, 70, 7, transposable>>() == 1);
  CHECK(along_the_rows<example<float, 64, 8, transposable>>() == 1);
  CHECK(down_a_column<example<float, 64, 8, transposable>>() == 1);
  CHECK(down_a_column<example<fp16, 64, 64, transposable>>() == 1);
  CHECK(along_the_rows<example<fp16, 64, 64, transposable>>() == 1);
  CHECK(along_the_rows<example<fp16, 64, 64, transposable>>(2) == 1);
  CHECK(down_a_column<example<fp16, 64, 96, transposable>>() == 1);
  CHECK(down_a_column<example<fp16, 70, 6, transposable>>() == 1);
}
