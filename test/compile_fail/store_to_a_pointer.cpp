// EXPECT: giwa: a tile is copied from or to a tensor_view of two dimensions
// SPDX-License-Identifier: MIT
// A pointer has no sizes and strides.
#include <giwa/tile.cuh>

using sums = giwa::register_tile<float, giwa::warp_map<16, 8>>;
#if defined(GIWA_COMPILE_FAIL)
using target = float*;
#else
using target = giwa::tensor_view<float, 2>;
#endif
void run(const sums& from, target to) { giwa::store(0, from, to, {0, 0}); }
