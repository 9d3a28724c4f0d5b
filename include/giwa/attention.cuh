// SPDX-License-Identifier: MIT
// Public header of the attention layer: masks, score modifiers, and attention_forward on a stream.
#ifndef GIWA_ATTENTION_CUH
#define GIWA_ATTENTION_CUH

#include <giwa/attention/problem/params.hpp>
#include <giwa/numeric/trigonometry.hpp>
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#error "giwa/attention.cuh needs nvcc: compile this file as CUDA (.cu), or include <giwa/host.hpp> for the CPU alone."
#include <giwa/attention/call/forward.hpp>
#elif !defined(__CUDACC_RTC__)  // NVRTC compiles kernels, not their launches
#include <giwa/attention/call/plan.cuh>
#include <giwa/attention/problem/memory_advice.hpp>
#include <giwa/attention/reference/reference.cuh>
#include <giwa/attention/sums/merge.cuh>
#include <giwa/base/throw.hpp>
#endif

#endif
