// EXPECT: giwa::multiply_add: a must have as many columns as b has rows: use transposed(b) for d += a b^T.
// SPDX-License-Identifier: MIT
// The product of the rows of two tiles transposes the second.
#include <giwa/tile.cuh>

using tile = giwa::shared_tile<float, giwa::tile_shape<32, 16>>;
using sums = giwa::register_tile<float, giwa::thread_map<giwa::tile_shape<32, 32>, 8, 8>>;
#if defined(GIWA_COMPILE_FAIL)
void run(sums& d, const tile& a, const tile& b) { giwa::multiply_add(0, d, a, b); }
#else
void run(sums& d, const tile& a, const tile& b) { giwa::multiply_add(0, d, a, giwa::transposed(b)); }
#endif
