// EXPECT: giwa::swizzled: make a row a multiple of the swizzle's span: choose more columns or a smaller span.
// SPDX-License-Identifier: MIT
// The rows of a swizzled tile are whole spans.
#include <giwa/tile/shared_tile.hpp>

#if defined(GIWA_COMPILE_FAIL)
constexpr int columns = 40;  // 160 bytes
#else
constexpr int columns = 64;
#endif
using tile = giwa::shared_tile<float, giwa::tile_shape<8, columns>, giwa::swizzled<giwa::swizzle::bytes_128>>;
constexpr auto size = sizeof(tile);
