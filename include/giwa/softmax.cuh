// SPDX-License-Identifier: MIT
// Public header of the softmax layer: the online-softmax state and its algebra, and the softmax of rows on a stream.
#ifndef GIWA_SOFTMAX_CUH
#define GIWA_SOFTMAX_CUH

#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/softmax/device_exponential.cuh>
#include <giwa/softmax/online.cuh>
#include <giwa/softmax/state.hpp>
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#error "giwa/softmax.cuh needs nvcc: compile this file as CUDA (.cu), or include <giwa/host.hpp> for the CPU alone."
#include <giwa/softmax/host_softmax.hpp>
#elif !defined(__CUDACC_RTC__)  // NVRTC compiles kernels, not their launches
#include <giwa/base/throw.hpp>
#include <giwa/softmax/host_softmax.hpp>
#include <giwa/softmax/row_softmax.cuh>
#endif

#endif
