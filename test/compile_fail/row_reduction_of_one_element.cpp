// EXPECT: giwa: a row reduction needs two elements of each row in a thread: choose a map with more columns
// SPDX-License-Identifier: MIT
// Rows are reduced in two chains.
#include <giwa/tile/register_tile.hpp>

#if defined(GIWA_COMPILE_FAIL)
constexpr int threads = 32;
#else
constexpr int threads = 16;
#endif
using map = giwa::thread_map<giwa::tile_shape<8, 32>, 8, threads>;

void reduce(const giwa::register_tile<float, map>& tile, float (&sum)[map::rows]) {
  giwa::reduce_rows_of_thread(tile, sum, giwa::plus{});
}
