// EXPECT: giwa::pipeline: one stage is used while another is filled: choose Stages of at least 2.
// SPDX-License-Identifier: MIT
// A pipeline that is filled while it is used has at least two stages.
#include <giwa/tile/pipeline.cuh>

#if defined(GIWA_COMPILE_FAIL)
constexpr int depth = 1;
#else
constexpr int depth = 2;
#endif
using tile = giwa::shared_tile<float, giwa::tile_shape<8, 32>>;
giwa::pipeline<tile, depth, giwa::plain_copies> pipeline;
