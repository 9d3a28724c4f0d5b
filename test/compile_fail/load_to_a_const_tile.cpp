// EXPECT: giwa: the target of a load must be a shared_tile that is not const.
// SPDX-License-Identifier: MIT
// A load writes the tile.
#include <giwa/tile.cuh>

using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
struct group {
  int rank() const { return 0; }
  int size() const { return 1; }
};
#if defined(GIWA_COMPILE_FAIL)
using target = const tile;
#else
using target = tile;
#endif
void run(giwa::tensor_view<const float, 2> from, target& to) { giwa::load(group{}, from, {0, 0}, to); }
