// EXPECT: giwa::store: the elements of the target view must not be const
// SPDX-License-Identifier: MIT
// A store writes the view.
#include <giwa/tile.cuh>

using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
struct group {
  int rank() const { return 0; }
  int size() const { return 1; }
};
#if defined(GIWA_COMPILE_FAIL)
using element = const float;
#else
using element = float;
#endif
using sums = giwa::register_tile<float, giwa::warp_map<16, 8>>;
void run(const sums& from, giwa::tensor_view<element, 2> to) { giwa::store(0, from, to, {0, 0}); }
void run(const tile& from, giwa::tensor_view<element, 2> to) { giwa::store(group{}, from, to, {0, 0}); }
