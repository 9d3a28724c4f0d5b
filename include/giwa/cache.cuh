// SPDX-License-Identifier: MIT
// Public header of attention to a cache of keys and values: attention_cached, append_to_cache, masks and score modifiers.
#ifndef GIWA_CACHE_CUH
#define GIWA_CACHE_CUH

#include <giwa/attention/append/append_rows.hpp>
#include <giwa/attention/problem/cached_params.hpp>
#include <giwa/numeric/fp8.hpp>
#include <giwa/numeric/int4_pair.hpp>
#include <giwa/numeric/int8_code.hpp>
#include <giwa/numeric/trigonometry.hpp>
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#error "giwa/cache.cuh needs nvcc: compile this file as CUDA (.cu), or include <giwa/host.hpp> for the CPU alone."
#include <giwa/attention/call/append.hpp>
#include <giwa/attention/call/cached.hpp>
#include <giwa/attention/call/read_cache.hpp>
#elif !defined(__CUDACC_RTC__)  // NVRTC compiles kernels, not their launches
#include <giwa/attention/append/append.cuh>
#include <giwa/attention/choose/cached.cuh>
#include <giwa/base/throw.hpp>
#endif

#endif
