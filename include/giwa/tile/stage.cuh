// SPDX-License-Identifier: MIT
// The former name of pipeline.cuh, deprecated.
#ifndef GIWA_TILE_STAGE_CUH
#define GIWA_TILE_STAGE_CUH

#include <giwa/tile/pipeline.cuh>

#endif
