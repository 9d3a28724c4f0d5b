// EXPECT: giwa::swizzled: the pattern repeats every 8 rows: choose a multiple of 8 rows.
// SPDX-License-Identifier: MIT
// The rows of a swizzled tile come by eight.
#include <giwa/tile/shared_tile.hpp>

#if defined(GIWA_COMPILE_FAIL)
constexpr int rows = 12;
#else
constexpr int rows = 16;
#endif
using tile = giwa::shared_tile<float, giwa::tile_shape<rows, 32>, giwa::swizzled<giwa::swizzle::bytes_128>>;
constexpr auto size = sizeof(tile);
