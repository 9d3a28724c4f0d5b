// SPDX-License-Identifier: MIT
// Products of shared tiles in fp32 arithmetic, for the tests on the host executor and on a GPU.
#ifndef GIWA_TEST_HOST_TILE_MMA_CASES_CUH
#define GIWA_TEST_HOST_TILE_MMA_CASES_CUH

#include <giwa/grid.cuh>
#include <giwa/tile.cuh>

#include <cmath>
#include <tuple>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace giwa_test {

using giwa::bf16;
using giwa::fp16;

/// What is multiplied: tiles of T and U, by threads as the map has them.
template <class T, class U, class Map, int Depth, class LayoutOfA = giwa::row_major, class LayoutOfB = giwa::row_major,
          bool Transposed = false, int Parts = 1>
struct multiplied {
  using map = Map;
  using left = T;
  using right = U;
  static constexpr int rows = Map::shape::rows, columns = Map::shape::columns, depth = Depth;
  using tile_a = giwa::shared_tile<T, giwa::tile_shape<rows, Depth>, LayoutOfA>;
  // b, in its own tile with rows and columns exchanged, or in so many parts of its rows, one tile for one after the other.
  static constexpr bool transposed = Transposed;
  static constexpr int part_depth = Depth / Parts;
  using tile_b = giwa::shared_tile<
      U, std::conditional_t<Transposed, giwa::tile_shape<columns, Depth>, giwa::tile_shape<part_depth, columns>>,
      LayoutOfB>;
};
template <class T, class U, class Map, int Depth, class LayoutOfA = giwa::row_major, class LayoutOfB = giwa::row_major>
using multiplied_by_rows = multiplied<T, U, Map, Depth, LayoutOfA, LayoutOfB, true>;
template <class T, class U, class Map, int Depth, int Parts, class LayoutOfA = giwa::row_major>
using multiplied_in_parts = multiplied<T, U, Map, Depth, LayoutOfA, giwa::row_major, false, Parts>;

struct mma_params {
  const float *a, *b;  // (rows, depth), (depth, columns)
  float* d;            // (rows, columns), what is added to
};

template <class Multiplied>
struct mma_op {
  using params = mma_params;
  using map = typename Multiplied::map;
  static constexpr int max_threads = giwa::round_up(map::threads, 32), min_blocks = 1;
  struct shared_storage {
    typename Multiplied::tile_a a;
    typename Multiplied::tile_b b;
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    constexpr int depth = Multiplied::depth, columns = Multiplied::columns;
    for (int i = block.rank(); i < Multiplied::rows * depth; i += block.size())
      s.a(i / depth, i % depth) = giwa::convert<typename Multiplied::left>{}(p.a[i]);
    giwa::register_tile<float, map> d;
    const bool busy = block.rank() < map::threads;
    if (busy) d.for_each(block.rank(), [&](float& x, int row, int column) { x = p.d[row * columns + column]; });
    for (int first = 0; first < depth; first += Multiplied::part_depth) {
      for (int i = block.rank(); i < Multiplied::part_depth * columns; i += block.size()) {
        const int k = i / columns, column = i % columns;
        (Multiplied::transposed ? s.b(column, k) : s.b(k, column)) =
            giwa::convert<typename Multiplied::right>{}(p.b[(first + k) * columns + column]);
      }
      block.sync();
      if (busy) {
        if constexpr (Multiplied::transposed)
          giwa::multiply_add(block.rank(), d, s.a, giwa::transposed(s.b));
        else if constexpr (Multiplied::part_depth == depth)
          giwa::multiply_add(block.rank(), d, s.a, s.b);
        else
          giwa::multiply_add(block.rank(), d, s.a, first, s.b);
      }
      block.sync();
    }
    if (busy) d.for_each(block.rank(), [&](float x, int row, int column) { p.d[row * columns + column] = x; });
  }
};

template <int Rows, int Columns, int ThreadRows, int ThreadColumns, int Run>
using threads_of = giwa::thread_map<giwa::tile_shape<Rows, Columns>, ThreadRows, ThreadColumns, Run>;

using all_multiplied =
    std::tuple<multiplied<float, float, threads_of<128, 128, 16, 16, 4>, 32, giwa::padded<4>>,  // the matrix product's
               multiplied<fp16, fp16, threads_of<128, 128, 16, 16, 8>, 64, giwa::padded<8>>,    //
               multiplied<bf16, bf16, threads_of<16, 16, 8, 8, 2>, 112, giwa::padded<8>>,       //
               multiplied<float, float, threads_of<16, 16, 8, 8, 2>, 112, giwa::padded<4>>,     //
               multiplied<fp16, fp16, threads_of<64, 64, 8, 16, 4>, 16, giwa::swizzled<giwa::swizzle::bytes_32>,
                          giwa::swizzled<giwa::swizzle::bytes_128>>,
               multiplied<float, fp16, threads_of<24, 48, 4, 8, 3>, 7, giwa::row_major,
                          giwa::padded<2>>,                             // runs that no access has
               multiplied<bf16, float, threads_of<6, 10, 3, 2, 1>, 5>,  // single elements
               multiplied<fp16, bf16, threads_of<32, 32, 16, 4, 8>, 24, giwa::transposable, giwa::transposable>,
               multiplied<float, float, threads_of<1, 32, 1, 32, 1>, 1>,
               multiplied_by_rows<float, float, threads_of<64, 64, 16, 8, 1>, 40, giwa::padded<4>, giwa::padded<4>>,
               multiplied_by_rows<float, float, threads_of<64, 64, 16, 16, 1>, 32, giwa::padded<2>, giwa::padded<2>>,
               multiplied_by_rows<fp16, bf16, threads_of<24, 48, 4, 8, 3>, 7, giwa::row_major, giwa::padded<2>>,
               multiplied_by_rows<bf16, float, threads_of<16, 32, 16, 4, 8>, 24, giwa::transposable>,
               multiplied_in_parts<float, float, threads_of<64, 40, 16, 8, 1>, 64, 2, giwa::padded<8>>,
               multiplied_in_parts<fp16, float, threads_of<6, 10, 3, 2, 1>, 9, 3>>;

/// Machine::run(op, a, b, d) runs an op on copies of the arrays and brings d back. Random values that T and U hold exactly; the
/// sums' rounding errors are bounded as those of any order of summation, with 2^-24 for each sum and product.
template <class Multiplied, class Machine>
bool product_is_close(const Machine& machine, random_sequence& random, bool small_integers) {
  constexpr int rows = Multiplied::rows, columns = Multiplied::columns, depth = Multiplied::depth;
  const auto make = [&]<class T>(int count, T) {
    std::vector<float> v(static_cast<std::size_t>(count));
    for (float& x : v) {
      const auto any = static_cast<float>(random.below(1 << 20) - (1 << 19)) * 0x1p-14f;
      x = small_integers ? static_cast<float>(random.below(17) - 8)
                         : giwa::convert<float>{}(giwa::convert<T>{}(random.below(9) == 0 ? 64 * any : any));
    }
    return v;
  };
  const std::vector<float> a = make(rows * depth, typename Multiplied::left{}),
                           b = make(depth * columns, typename Multiplied::right{}), before = make(rows * columns, 0.f);
  std::vector<float> d = before;
  if (!machine.run(mma_op<Multiplied>{}, a, b, d)) return false;
  const auto at = [](const std::vector<float>& v, int i) -> double { return v[static_cast<std::size_t>(i)]; };
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) {
      double sum = at(before, row * columns + column), magnitude = std::abs(sum);
      for (int k = 0; k < depth; ++k) {
        const double product = at(a, row * depth + k) * at(b, k * columns + column);
        sum += product;
        magnitude += std::abs(product);
      }
      const double allowed = small_integers ? 0 : 0x1p-24 * (depth + 2) * magnitude;
      if (!(std::abs(at(d, row * columns + column) - sum) <= allowed)) return false;
    }
  return true;
}

template <class Multiplied, class Machine>
void check_products(const Machine& machine) {
  random_sequence random(2026);
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    REQUIRE(product_is_close<Multiplied>(machine, random, i % 2 == 0));
  }
}

}  // namespace giwa_test

#endif
