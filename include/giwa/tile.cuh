// SPDX-License-Identifier: MIT
// Public header of the tile layer: shapes, layouts, shared and register tiles, copies, pipelines and products.
#ifndef GIWA_TILE_CUH
#define GIWA_TILE_CUH

#include <giwa/grid/tile_order.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/tile/copy.cuh>
#include <giwa/tile/layout.hpp>
#include <giwa/tile/mma.hpp>
#include <giwa/tile/pipeline.cuh>
#include <giwa/tile/register_copy.cuh>
#include <giwa/tile/register_map.hpp>
#include <giwa/tile/register_tile.hpp>
#include <giwa/tile/shape.hpp>
#include <giwa/tile/shared_tile.hpp>

#endif
