// EXPECT: giwa::pipeline: an mbarrier counts fewer than 2^20 bytes: use smaller tiles.
// SPDX-License-Identifier: MIT
// The bytes of one stage are counted by an mbarrier.
#include <giwa/tile/pipeline_sm90.cuh>

#if defined(GIWA_COMPILE_FAIL)
constexpr int rows = 4096;
#else
constexpr int rows = 2048;
#endif
using tile = giwa::shared_tile<float, giwa::tile_shape<rows, 64>>;
constexpr int depth = giwa::pipeline<tile, 2, giwa::tensor_copies<>>::stages;
