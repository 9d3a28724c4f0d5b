// EXPECT: giwa: TMA copies tiles with the layout row_major or swizzled
// SPDX-License-Identifier: MIT
// TMA knows no padding.
#include <giwa/tile/tile_map.hpp>

using tile = giwa::shared_tile<float, giwa::tile_shape<64, 32>,
#if defined(GIWA_COMPILE_FAIL)
                               giwa::padded<1>
#else
                               giwa::row_major
#endif
                               >;

giwa::status map(const giwa::tensor_view<const float, 2>& view) { return giwa::make_tile_map<tile>(view).state; }
