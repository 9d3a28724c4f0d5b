// SPDX-License-Identifier: MIT
// Public header of quantize: tensors of 16 and 32 bits become e4m3, int8_code or int4_pair with scales.
#ifndef GIWA_QUANTIZE_CUH
#define GIWA_QUANTIZE_CUH

#include <giwa/attention/quantize/channels.hpp>
#include <giwa/attention/quantize/groups.hpp>
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#error "giwa/quantize.cuh needs nvcc: compile this file as CUDA (.cu), or include <giwa/host.hpp> for the CPU alone."
#include <giwa/attention/call/quantize.hpp>
#elif !defined(__CUDACC_RTC__)  // NVRTC compiles kernels, not their launches
#include <giwa/attention/quantize/quantize.cuh>
#include <giwa/base/throw.hpp>
#endif

#endif
