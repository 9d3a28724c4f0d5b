// EXPECT: giwa: a tile is copied from or to a tensor_view of two dimensions
// SPDX-License-Identifier: MIT
// A pointer has no sizes and strides.
#include <giwa/tile.cuh>

using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
struct group {
  int rank() const { return 0; }
  int size() const { return 1; }
};
#if defined(GIWA_COMPILE_FAIL)
using target = float*;
#else
using target = giwa::tensor_view<float, 2>;
#endif
void run(const tile& from, target to) { giwa::store(group{}, from, to, {0, 0}); }
