// EXPECT: giwa: a tile is copied from or to a tensor_view of two dimensions
// SPDX-License-Identifier: MIT
// A pointer has no sizes and strides, for copies that go on in the background too.
#include <giwa/tile.cuh>

using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
struct group {
  int rank() const { return 0; }
  int size() const { return 1; }
};
#if defined(GIWA_COMPILE_FAIL)
void run(const float* from, tile& to) { giwa::load_async(group{}, from, {0, 0}, to); }
#else
void run(const float* from, tile& to) {
  giwa::load_async(group{}, giwa::tensor_view<const float, 2>{from, {8, 32}}, {0, 0}, to);
}
#endif
