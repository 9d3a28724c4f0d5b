// SPDX-License-Identifier: MIT
// Public header of masks from data: block_map, make_block_map, block_sparse, and masks that read bits.
#ifndef GIWA_BLOCK_MAP_CUH
#define GIWA_BLOCK_MAP_CUH

#include <giwa/attention/blocks/rows.hpp>
#include <giwa/attention/problem/data_masks.hpp>
#include <giwa/attention/problem/mask_combinators.hpp>
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#error "giwa/block_map.cuh needs nvcc: compile this file as CUDA (.cu), or include <giwa/host.hpp> for the CPU alone."
#include <giwa/attention/call/block_map.hpp>
#elif !defined(__CUDACC_RTC__)  // NVRTC compiles kernels, not their launches
#include <giwa/attention/blocks/block_map.cuh>
#include <giwa/base/throw.hpp>
#endif

#endif
