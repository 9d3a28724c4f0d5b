// EXPECT: giwa::stage: one slot is used while another is filled: Depth is at least 2.
// SPDX-License-Identifier: MIT
// A stage that is filled while it is used has two slots or more.
#include <giwa/tile/stage.cuh>

#if defined(GIWA_COMPILE_FAIL)
constexpr int depth = 1;
#else
constexpr int depth = 2;
#endif
using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
giwa::stage<tile, depth, giwa::plain_copies> stage;
