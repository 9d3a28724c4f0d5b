// EXPECT: giwa::make_tile_map: a pointer has no sizes: pass tensor_view<T, 2>{pointer, {rows, columns}}.
// SPDX-License-Identifier: MIT
// A tensor map needs sizes and strides.
#include <giwa/tile/tile_map.hpp>

using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
#if defined(GIWA_COMPILE_FAIL)
auto run(float* p) { return giwa::make_tile_map<tile>(p, "a"); }
#else
auto run(float* p) { return giwa::make_tile_map<tile>(giwa::tensor_view<float, 2>{p, {8, 32}}, "a"); }
#endif
