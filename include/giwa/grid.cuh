// SPDX-License-Identifier: MIT
// Public header of the grid layer: thread coordinates, stride loops, launch and for_all. A host compiler gets ops alone.
#ifndef GIWA_GRID_CUH
#define GIWA_GRID_CUH

#include <giwa/base/arch.hpp>
#include <giwa/grid/device_block.cuh>
#include <giwa/grid/op.hpp>
#include <giwa/grid/reduce.hpp>
#include <giwa/numeric/fast_division.hpp>
#include <giwa/numeric/philox.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/numeric/trigonometry.hpp>
#if defined(__CUDACC__)
#include <giwa/grid/scope.cuh>
#endif
#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)  // NVRTC compiles kernels, not their launches
#include <giwa/base/throw.hpp>
#include <giwa/grid/elementwise.cuh>
#include <giwa/grid/for_all.cuh>
#include <giwa/grid/launch.cuh>
#include <giwa/grid/occupancy.hpp>
#elif !defined(__CUDACC__)
#include <giwa/base/throw.hpp>
#endif

#endif
