// EXPECT: giwa::make_store_map: the elements of the view must not be const
// SPDX-License-Identifier: MIT
// Stores write the view.
#include <giwa/tile/tile_map.hpp>

using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
#if defined(GIWA_COMPILE_FAIL)
using element = const float;
#else
using element = float;
#endif
auto run(giwa::tensor_view<element, 2> v) { return giwa::make_store_map<tile>(v, "a"); }
