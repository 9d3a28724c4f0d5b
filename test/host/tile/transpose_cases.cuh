// SPDX-License-Identifier: MIT
// Transposes and stencil sweeps of the examples for the tests on the host executor and on a GPU.
#ifndef GIWA_TEST_HOST_TILE_TRANSPOSE_CASES_CUH
#define GIWA_TEST_HOST_TILE_TRANSPOSE_CASES_CUH

#include <giwa/grid.cuh>

#include <algorithm>
#include <limits>
#include <vector>

#include "../../../examples/stencil.cuh"
#include "../../../examples/transpose.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace giwa_test {

using giwa::int64;

/// A matrix in memory of all ones (bits, for floats NaN): sizes, strides and the place of element (0, 0).
struct placing {
  giwa::index<2> extents, strides;
  int64 first, size;

  /// Layouts: 0 rows of whole packets, 1 rows, 2 columns, 3 every third element, 4 the last row first.
  placing(int64 rows, int64 columns, int layout, random_sequence& random) : extents{rows, columns} {
    const int64 height = std::max<int64>(1, rows), width = std::max<int64>(1, columns), pad = random.below(4);
    switch (layout) {
      case 0: strides = {giwa::round_up(width, 16) + 16 * (pad % 2), 1}; break;
      case 1: strides = {width + pad, 1}; break;
      case 2: strides = {1, height + pad}; break;
      case 3: strides = {3 * width + pad, 3}; break;
      default: strides = {-(width + pad), 1};
    }
    const int64 back = layout == 4 ? (height - 1) * (width + pad) : 0;
    first = 32 + back + (layout == 0 ? 0 : random.below(8));
    size = first + std::max<int64>(0, (height - 1) * strides[0]) + (width - 1) * strides[1] + 32;
  }
  std::size_t at(int64 row, int64 column) const {
    return static_cast<std::size_t>(first + row * strides[0] + column * strides[1]);
  }
};

/// Machine::run(in, out, call) calls call(where, in's memory, out's), on copies if it must, and brings out back.
template <class T, class Machine>
bool transpose_is_right(const Machine& machine, int64 rows, int64 columns, int layout_in, int layout_out,
                        random_sequence& random) {
  const placing from(rows, columns, layout_in, random), to(columns, rows, layout_out, random);
  std::vector<T> in(static_cast<std::size_t>(from.size), static_cast<T>(-1)),
      out(static_cast<std::size_t>(to.size), static_cast<T>(-1)), expected = out;
  for (int64 row = 0; row < rows; ++row)
    for (int64 column = 0; column < columns; ++column)
      expected[to.at(column, row)] = in[from.at(row, column)] = static_cast<T>(random.bits());
  const bool ran = machine.run(in, out, [&](const auto& where, const T* source, T* target) {
    return tiled::transpose(where, giwa::tensor_view<const T, 2>{source + from.first, from.extents, from.strides},
                            giwa::tensor_view<T, 2>{target + to.first, to.extents, to.strides});
  });
  return ran && out == expected;
}

template <class T, class Machine>
void check_transpose(const Machine& machine, int cases, int64 largest) {
  random_sequence random(2026);
  for (int i = 0; i < cases; ++i) {
    const bool packets = i % 2 == 0;  // half of the cases take the fast way
    const auto size = [&] {
      const int64 any = random.below(5) == 0 ? random.below(3) : random.below(largest);
      return packets ? 8 * giwa::ceil_div<int64>(any, 8) : any;
    };
    const int64 rows = size(), columns = size();
    const int layout_in = packets ? 0 : static_cast<int>(random.below(5));
    const int layout_out = packets ? 0 : static_cast<int>(random.below(5));
    CAPTURE(i, rows, columns, layout_in, layout_out);
    REQUIRE(transpose_is_right<T>(machine, rows, columns, layout_in, layout_out, random));
  }
}

/// `Sweeps` staged sweeps against as many plain ones, bit by bit; the first of them reads NaN where it should not.
template <int Sweeps, class Machine>
bool sweeps_are_right(const Machine& machine, int64 rows, int64 columns, int layout_in, int layout_out,
                      random_sequence& random) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), untouched = -12345;
  const placing from(rows, columns, layout_in, random), to(rows, columns, layout_out, random);
  std::vector<float> in(static_cast<std::size_t>(from.size), nan), out(static_cast<std::size_t>(to.size), untouched),
      expected = out, u(static_cast<std::size_t>(rows * columns)), next(u);
  const auto at = [&](int64 row, int64 column) { return static_cast<std::size_t>(row * columns + column); };
  for (int64 row = 0; row < rows; ++row)
    for (int64 column = 0; column < columns; ++column)
      u[at(row, column)] = in[from.at(row, column)] = static_cast<float>(random.below(1 << 24)) * 0x1p-20f;
  for (int sweep = 0; sweep < Sweeps; ++sweep) {
    for (int64 row = 0; row < rows; ++row)
      for (int64 column = 0; column < columns; ++column) {
        const bool inner = 0 < row && row + 1 < rows && 0 < column && column + 1 < columns;
        next[at(row, column)] = inner ? 0.25f * ((u[at(row - 1, column)] + u[at(row + 1, column)]) +
                                                 (u[at(row, column - 1)] + u[at(row, column + 1)]))
                                      : u[at(row, column)];
      }
    std::swap(u, next);
  }
  for (int64 row = 0; row < rows; ++row)
    for (int64 column = 0; column < columns; ++column) expected[to.at(row, column)] = u[at(row, column)];
  const bool ran = machine.run(in, out, [&](const auto& where, const float* source, float* target) {
    return tiled::sweep<Sweeps>(where,
                                giwa::tensor_view<const float, 2>{source + from.first, from.extents, from.strides},
                                giwa::tensor_view<float, 2>{target + to.first, to.extents, to.strides});
  });
  return ran && out == expected;
}

template <int Sweeps, class Machine>
void check_sweeps(const Machine& machine, int cases, int64 largest) {
  random_sequence random(7);
  for (int i = 0; i < cases; ++i) {
    const auto size = [&] { return random.below(5) == 0 ? random.below(4) : random.below(largest); };
    const int64 rows = size(), columns = size();
    const int layout_in = static_cast<int>(random.below(5)), layout_out = static_cast<int>(random.below(5));
    CAPTURE(i, rows, columns, layout_in, layout_out);
    REQUIRE(sweeps_are_right<Sweeps>(machine, rows, columns, layout_in, layout_out, random));
  }
}

}  // namespace giwa_test

#endif
