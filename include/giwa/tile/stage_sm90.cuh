// SPDX-License-Identifier: MIT
// The former name of pipeline_sm90.cuh, deprecated.
#ifndef GIWA_TILE_STAGE_SM90_CUH
#define GIWA_TILE_STAGE_SM90_CUH

#include <giwa/tile/pipeline_sm90.cuh>

#endif
