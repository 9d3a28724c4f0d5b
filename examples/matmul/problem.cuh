// SPDX-License-Identifier: MIT
// Matrix product: the parts that all steps share: the check of shapes, the epilogue and the stores.
#pragma once

#include <giwa/grid.cuh>
#include <giwa/tile.cuh>

#include <limits>

namespace matmul {

using giwa::int64;

/// An epilogue computes the stored value of element (row, column) of c from its sum. This one returns the sum.
struct identity {
  GIWA_HOST_DEVICE float operator()(float sum, int64 /*row*/, int64 /*column*/) const { return sum; }
};

/// c and its epilogue, for kernels.
template <class U, class Epilogue>
struct output {
  giwa::tensor_view<U, 2> c;  // (m, n)
  Epilogue epilogue;

  /// Stores an element if it is inside c.
  GIWA_HOST_DEVICE void put(float sum, int64 row, int64 column) const {
    if (row < c.extent(0) && column < c.extent(1)) c(row, column) = giwa::convert<U>{}(epilogue(sum, row, column));
  }
};

/// Checks the shapes a (m, k), b (k, n) and c (m, n), with any strides.
template <class T, class U>
giwa::status check(const giwa::tensor_view<const T, 2>& a, const giwa::tensor_view<const T, 2>& b,
                   const giwa::tensor_view<U, 2>& c) {
  if (const giwa::status s = a.check("a"); !s.ok()) return s;
  if (const giwa::status s = b.check("b"); !s.ok()) return s;
  if (const giwa::status s = c.check("c"); !s.ok()) return s;
  const auto sizes_differ = [](const char* argument, const char* message, int64 expected, int64 got) {
    return giwa::status::invalid(argument, message, giwa::bound::exactly, expected, got);
  };
  if (b.extent(0) != a.extent(1)) return sizes_differ("b", "b has as many rows as a columns", a.extent(1), b.extent(0));
  if (c.extent(0) != a.extent(0)) return sizes_differ("c", "c has as many rows as a", a.extent(0), c.extent(0));
  if (c.extent(1) != b.extent(1)) return sizes_differ("c", "c has as many columns as b", b.extent(1), c.extent(1));
  return {};
}

/// The tiles of c, one for each block, and the steps along k.
struct cut {
  giwa::tile_order order{};
  int steps = 0;
};

/// Divides a product into tiles and steps. Refuses more tiles than a grid has blocks, and more steps than an int counts. Bands
/// of 16 rows of 128 x 128 tiles let the blocks of an H200 share their inputs in its L2 cache.
inline giwa::result<cut> cut_into(int64 m, int64 n, int64 k, int rows, int columns, int depth) {
  const int64 down = giwa::ceil_div(m, rows), across = giwa::ceil_div(n, columns), steps = giwa::ceil_div(k, depth);
  if (giwa::product_overflows(down, across) || down * across > giwa::launch_limits::grid_x)
    return {{}, giwa::status::invalid("c", "the number of tiles must fit in a grid")};
  if (steps > std::numeric_limits<int>::max() / 2)
    return {{}, giwa::status::invalid("a", "the number of steps along the columns must fit in an int")};
  return {{{static_cast<int>(down), static_cast<int>(across), 16}, static_cast<int>(steps)}, {}};
}

}  // namespace matmul
