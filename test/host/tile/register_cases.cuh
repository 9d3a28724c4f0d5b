// SPDX-License-Identifier: MIT
// Register tiles for the tests on the host executor and on a GPU: ops on them, and what they have to leave behind.
#ifndef GIWA_TEST_HOST_TILE_REGISTER_CASES_CUH
#define GIWA_TEST_HOST_TILE_REGISTER_CASES_CUH

#include <giwa/grid.cuh>
#include <giwa/tile/register_copy.cuh>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace giwa_test {

using giwa::int64;
using byte_array = std::vector<unsigned char>;
using giwa::thread_map, giwa::tile_shape, giwa::warp_map, giwa::warpgroup_map;

template <class Map>
struct register_op {
  static constexpr int max_threads = Map::threads, min_blocks = 1;
  static constexpr int tile_rows = Map::shape::rows, tile_columns = Map::shape::columns;
  template <class Block>
  GIWA_HOST_DEVICE static void fill(Block block, const float* in, giwa::register_tile<float, Map>& tile) {
    tile.for_each(block.rank(), [&](float& x, int r, int c) { x = in[r * tile_columns + c]; });
  }
};

/// x -> 2 x; then the rows' sums and maxima, by each thread for each of its rows; then x -> x - maximum.
template <class Map>
struct reduce_op : register_op<Map> {
  using base = register_op<Map>;
  using shared_storage = giwa::no_shared_storage;
  struct output {
    float tile[base::tile_rows * base::tile_columns];
    float sum[Map::threads][Map::rows], maximum[Map::threads][Map::rows];
  };
  struct params {
    const float* in;
    unsigned char* out;
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    output& out = *reinterpret_cast<output*>(p.out);
    giwa::register_tile<float, Map> tile;
    tile.fill(7);
    base::fill(block, p.in, tile);
    tile.transform([](float x) { return 2 * x; });
    float sum[Map::rows], maximum[Map::rows];
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) sum[r] = block.rank() % Map::lanes == 0 ? 1000.0f : 0.0f, maximum[r] = -1e30f;
    reduce_rows_of_thread(tile, sum, giwa::plus{});
    reduce_rows_of_thread(tile, maximum, giwa::larger{});
    giwa::reduce_over_lanes<Map>(block, sum, giwa::plus{});
    giwa::reduce_over_lanes<Map>(block, maximum, giwa::larger{});
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) {
      out.sum[block.rank()][r] = sum[r];
      out.maximum[block.rank()][r] = maximum[r];
    }
    tile.transform_rows(maximum, [](float x, float m) { return x - m; });
    tile.for_each(block.rank(), [&](float& x, int r, int c) { out.tile[r * base::tile_columns + c] = x; });
  }
};

/// Columns [FirstColumn, + the shared tile's) into a shared tile full of 0xff, which is then written out byte by byte.
template <class Map, class T, int Rows, int Columns, class Layout, int FirstColumn = 0, int FirstRow = 0>
struct to_shared_op : register_op<Map> {
  using base = register_op<Map>;
  using element = T;
  using tile = giwa::shared_tile<T, tile_shape<Rows, Columns>, Layout>;
  static constexpr int first_row = FirstRow, first_column = FirstColumn;
  struct shared_storage {
    tile to;
  };
  struct params {
    const float* in;
    unsigned char* out;
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    auto* const raw = reinterpret_cast<unsigned char*>(&s.to);
    const int size = static_cast<int>(sizeof s.to);
    for (int i = block.rank(); i < size; i += block.size()) raw[i] = 0xff;
    giwa::register_tile<float, Map> from;
    base::fill(block, p.in, from);
    block.sync();
    giwa::store(block.rank(), from, FirstColumn, s.to, FirstRow);
    block.sync();
    for (int i = block.rank(); i < size; i += block.size()) p.out[i] = raw[i];
  }
};

/// To a view in memory; `ByRows` where its rows' elements lie side by side.
template <class Map, class T, bool ByRows = false>
struct to_global_op : register_op<Map> {
  using base = register_op<Map>;
  using element = T;
  using shared_storage = giwa::no_shared_storage;
  struct params {
    const float* in;
    giwa::tensor_view<T, 2> to;
    giwa::index<2> origin;
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    giwa::register_tile<float, Map> from;
    base::fill(block, p.in, from);
    if constexpr (ByRows)
      if (p.to.stride(1) == 1) return giwa::store_rows(block, block.rank(), from, p.to, p.origin);
    giwa::store(block.rank(), from, p.to, p.origin);
  }
};

/// Numbers that have to be rounded, some of them too large or too small for 16 bits.
inline std::vector<float> numbers_to_round(random_sequence& random, int count) {
  std::vector<float> v(static_cast<std::size_t>(count));
  for (float& x : v)
    x = std::ldexp(static_cast<float>(random.below(1 << 24)) * 0x1p-24f - 0.5f,
                   static_cast<int>(random.below(50)) - 25);
  return v;
}

/// Where.run(config, op, in, out, params) runs the op with params(pointer to in, pointer to out).
template <class Map, class Where>
void check_reductions(const Where& where) {
  using op = reduce_op<Map>;
  random_sequence random(5);
  std::vector<float> in(static_cast<std::size_t>(op::tile_rows * op::tile_columns));
  for (float& x : in) x = static_cast<float>(random.below(2001) - 1000);  // sums are exact in any order
  byte_array bytes(sizeof(typename op::output), 0xff);
  REQUIRE(where.run({.block = Map::threads}, op{}, in, bytes, [](const float* from, unsigned char* to) {
    return typename op::params{from, to};
  }));
  std::vector<typename op::output> out(1);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  bool right = true;
  for (int thread = 0; thread < Map::threads; ++thread)
    for (int slot = 0; slot < Map::rows; ++slot) {
      const int row = Map::row(thread, slot);
      float sum = 1000, maximum = -1e30f;
      for (int c = 0; c < op::tile_columns; ++c) {
        const float x = 2 * in[static_cast<std::size_t>(row * op::tile_columns + c)];
        sum += x;
        maximum = x > maximum ? x : maximum;
      }
      right = right && out[0].sum[thread][slot] == sum && out[0].maximum[thread][slot] == maximum;
      for (int c = 0; c < op::tile_columns; ++c) {
        const int i = row * op::tile_columns + c;
        right = right && out[0].tile[i] == 2 * in[static_cast<std::size_t>(i)] - maximum;
      }
    }
  CHECK(right);
}

template <class Op, class Where>
void check_to_shared(const Where& where) {
  using placement = typename Op::tile::placement;
  using element = typename Op::element;
  random_sequence random(6);
  const std::vector<float> in = numbers_to_round(random, Op::tile_rows * Op::tile_columns);
  byte_array out(sizeof(typename Op::tile), 0), expected(out.size(), 0xff);
  for (int row = 0; row < Op::tile_rows; ++row)
    for (int column = 0; column < Op::tile::columns; ++column) {
      const float x = in[static_cast<std::size_t>(row * Op::tile_columns + Op::first_column + column)];
      const element rounded = giwa::convert<element>{}(x);
      std::memcpy(
          expected.data() + static_cast<std::size_t>(placement::offset(Op::first_row + row, column)) * sizeof(element),
          &rounded, sizeof rounded);
    }
  REQUIRE(where.run({.block = Op::max_threads}, Op{}, in, out, [](const float* from, unsigned char* to) {
    return typename Op::params{from, to};
  }));
  CHECK(out == expected);
}

template <class Op, class Where>
void check_to_global(const Where& where, int rounds) {
  using element = typename Op::element;
  random_sequence random(7);
  bool right = true;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<float> in = numbers_to_round(random, Op::tile_rows * Op::tile_columns);
    const int64 unit = round % 2 == 0 ? 1 : 8;  // 8 elements of 16 bits are what is stored at once
    const int64 rows = random.below(2 * Op::tile_rows), columns = random.below(2 * Op::tile_columns) / unit * unit;
    giwa::index<2> stride{columns + random.below(3) * unit, 1};
    int64 first = random.below(4) / unit * unit;
    switch (random.below(6)) {
      case 0: stride = {1, rows + random.below(3)}; break;  // down the columns
      case 1: stride = {2 * columns + 1, 2}; break;         // every other element
      case 2:
        stride[0] = -stride[0];
        first -= stride[0] * (rows > 0 ? rows : 1);
        break;  // from the last row up
      default: break;
    }
    if (rows == 1 && random.below(2) == 0) stride[0] = -12345;
    giwa::index<2> origin{
        random.below(3) == 0 ? 0 : random.below(rows + Op::tile_rows + 4) - Op::tile_rows - 2,
        random.below(3) == 0 ? 0 : random.below(columns + Op::tile_columns + 4) - Op::tile_columns - 2};
    origin[1] = origin[1] / unit * unit;
    if (round % 17 == 0) origin[round % 2] = (int64{1} << 40) * (round % 3 - 1);
    const int64 reach = (rows + 3) * (2 * columns + 20) + (columns + 3) * (rows + 4) + 8;
    byte_array out(static_cast<std::size_t>(reach) * sizeof(element), 0xff), expected = out;
    for (int64 r = 0; r < Op::tile_rows; ++r)
      for (int64 c = 0; c < Op::tile_columns; ++c) {
        const int64 row = origin[0] + r, column = origin[1] + c;
        if (row < 0 || row >= rows || column < 0 || column >= columns) continue;
        const element rounded = giwa::convert<element>{}(in[static_cast<std::size_t>(r * Op::tile_columns + c)]);
        const int64 at = first + row * stride[0] + column * stride[1];
        REQUIRE((at >= 0 && at < reach));
        std::memcpy(expected.data() + static_cast<std::size_t>(at) * sizeof(element), &rounded, sizeof rounded);
      }
    REQUIRE(where.run({.block = Op::max_threads}, Op{}, in, out, [&](const float* from, unsigned char* to) {
      return typename Op::params{from, {reinterpret_cast<element*>(to) + first, {rows, columns}, stride}, origin};
    }));
    right = right && out == expected;
  }
  CHECK(right);
}

// What both tests run.
using giwa::bf16, giwa::fp16, giwa::swizzle, giwa::swizzled;
using reduced_maps =
    std::tuple<warp_map<16, 16>, warp_map<64, 32>, warpgroup_map<80>, thread_map<tile_shape<32, 64>, 8, 32>,
               thread_map<tile_shape<64, 32>, 16, 8, 2>, thread_map<tile_shape<32, 3>, 32, 1>, warp_map<32, 8>>;
using stored_to_shared =
    std::tuple<to_shared_op<warpgroup_map<128>, fp16, 64, 64, swizzled<swizzle::bytes_128>, 64>,
               to_shared_op<warpgroup_map<96>, bf16, 128, 96, swizzled<swizzle::bytes_64>, 0, 64>,
               to_shared_op<warpgroup_map<80>, bf16, 64, 16, swizzled<swizzle::bytes_32>, 48>,
               to_shared_op<warp_map<32, 32>, fp16, 64, 32, giwa::padded<8>, 0, 16>,
               to_shared_op<warp_map<16, 64>, fp16, 16, 32, giwa::row_major, 32>,
               to_shared_op<warp_map<64, 8>, bf16, 64, 8, giwa::row_major>,    // too narrow for stmatrix
               to_shared_op<warp_map<16, 32>, fp16, 16, 32, giwa::padded<2>>,  // rows that it cannot address
               to_shared_op<warpgroup_map<64>, float, 64, 32, swizzled<swizzle::bytes_128>, 32>,
               to_shared_op<warp_map<32, 16>, float, 32, 16, giwa::transposable>,
               to_shared_op<thread_map<tile_shape<32, 64>, 8, 16, 2>, bf16, 32, 64, swizzled<swizzle::bytes_128>>,
               to_shared_op<thread_map<tile_shape<32, 32>, 8, 32>, float, 64, 16, giwa::padded<1>, 16, 32>>;
using stored_to_global =
    std::tuple<to_global_op<warpgroup_map<48>, fp16>, to_global_op<warp_map<32, 16>, bf16>,
               to_global_op<warpgroup_map<48>, bf16, true>, to_global_op<warp_map<32, 64>, fp16, true>,
               to_global_op<warp_map<16, 48>, float, true>, to_global_op<warp_map<16, 24>, float>,
               to_global_op<thread_map<tile_shape<16, 24>, 8, 4, 3>, bf16>>;

}  // namespace giwa_test

#endif
