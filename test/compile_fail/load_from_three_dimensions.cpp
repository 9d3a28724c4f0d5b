// EXPECT: giwa: a tile is copied from or to a tensor_view of two dimensions
// SPDX-License-Identifier: MIT
// A tile is part of a matrix.
#include <giwa/tile.cuh>

using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
struct group {
  int rank() const { return 0; }
  int size() const { return 1; }
};
#if defined(GIWA_COMPILE_FAIL)
constexpr int rank = 3;
#else
constexpr int rank = 2;
#endif
void run(giwa::tensor_view<const float, rank> from, tile& to) { giwa::load_async(group{}, from, {0, 0}, to); }
