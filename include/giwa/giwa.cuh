// SPDX-License-Identifier: MIT
// Most public headers for a GPU. Left out, because each takes seconds to compile: <giwa/attention_backward.cuh> (gradients),
// <giwa/cache.cuh> (decoding from a cache), <giwa/multi.hpp> and <giwa/nccl.hpp> (several GPUs), <giwa/host.hpp> and
// <giwa/host_executor.cuh> (the CPU).
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
