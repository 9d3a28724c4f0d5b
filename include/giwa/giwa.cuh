// SPDX-License-Identifier: MIT
// The public headers for a GPU but <giwa/attention_backward.cuh> and <giwa/cache.cuh>; <giwa/host.hpp> and
// <giwa/host_executor.cuh> add the CPU.
#ifndef GIWA_GIWA_CUH
#define GIWA_GIWA_CUH

#include <giwa/attention.cuh>
#include <giwa/device.hpp>
#include <giwa/grid.cuh>
#include <giwa/numeric/precision.hpp>
#include <giwa/softmax.cuh>
#include <giwa/tile.cuh>
#include <giwa/version.hpp>

#endif
