// SPDX-License-Identifier: MIT
// Public header of the backward pass of attention: attention_backward on a stream, masks and score modifiers.
#ifndef GIWA_ATTENTION_BACKWARD_CUH
#define GIWA_ATTENTION_BACKWARD_CUH

#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/problem/bias_gradient.hpp>
#include <giwa/attention/problem/score_gradient.hpp>
#include <giwa/numeric/trigonometry.hpp>
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#error \
    "giwa/attention_backward.cuh needs nvcc: compile this file as CUDA (.cu), or include <giwa/host.hpp> for the CPU alone."
#include <giwa/attention/call/backward.hpp>
#elif !defined(__CUDACC_RTC__)  // NVRTC compiles kernels, not their launches
#include <giwa/attention/choose/backward.cuh>
#include <giwa/base/throw.hpp>
#endif

#endif
