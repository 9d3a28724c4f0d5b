// EXPECT: giwa::store: pass the rank of the thread, block.lane() or block.rank(), as the first argument
// SPDX-License-Identifier: MIT
// Registers belong to a thread.
#include <giwa/tile.cuh>

using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
struct group {
  int rank() const { return 0; }
  int size() const { return 1; }
};
using sums = giwa::register_tile<float, giwa::warp_map<16, 8>>;
#if defined(GIWA_COMPILE_FAIL)
void run(const sums& from, giwa::tensor_view<float, 2> to) { giwa::store(group{}, from, to, giwa::index<2>{0, 0}); }
#else
void run(const sums& from, giwa::tensor_view<float, 2> to) { giwa::store(group{}.rank(), from, to, {0, 0}); }
#endif
