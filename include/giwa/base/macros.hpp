// SPDX-License-Identifier: MIT
// Checks of the language, toolkit and architecture, and the macros that all other files use.
#ifndef GIWA_BASE_MACROS_HPP
#define GIWA_BASE_MACROS_HPP

#include <giwa/version.hpp>

#if !defined(__CUDACC_RTC__) && __cplusplus < 202002L
#error "giwa needs C++20: compile with -std=c++20 (CMake: link giwa::giwa, which asks for it)."
#endif
#if defined(__CUDACC__) && defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1204
#error \
    "giwa needs the CUDA toolkit 12.4 or newer: this nvcc is older. Install a newer toolkit, or put its bin/ first in PATH."
#endif
// Masks, the softmax and attention compute with infinities and must pass NaN on. Host compilers assume under these
// flags that neither occurs, and give finite results where NaN is due. nvcc's --use_fast_math defines neither macro and
// changes device code only, where giwa calls the instructions by name.
#if !defined(__CUDACC_RTC__) && !defined(__CUDA_ARCH__) && \
    (defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__))
#error \
    "giwa needs NaN and infinity in host code: compile without -ffast-math, -Ofast and -ffinite-math-only. nvcc's --use_fast_math may stay."
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
#error "giwa needs compute capability 7.5 or newer: drop the older entry from -gencode / CMAKE_CUDA_ARCHITECTURES."
#endif

// All names of giwa are in `giwa` and, inside it, in an inline namespace named after the minor version. The symbols of
// two versions in one process stay distinct.
#define GIWA_DETAIL_VERSION_TAG_(major, minor) v##major##_##minor
#define GIWA_DETAIL_VERSION_TAG(major, minor) GIWA_DETAIL_VERSION_TAG_(major, minor)
#define GIWA_ABI GIWA_DETAIL_VERSION_TAG(GIWA_VERSION_MAJOR, GIWA_VERSION_MINOR)

// An attribute of the types that functions return to report: puts the version into the mangled name of each such
// function, the user's too. Otherwise a return type is no part of that name, and code compiled against two versions
// would link.
#if defined(__CUDACC_RTC__)
#define GIWA_ABI_TAG
#else
#define GIWA_DETAIL_STRING_(text) #text
#define GIWA_DETAIL_STRING(text) GIWA_DETAIL_STRING_(text)
#define GIWA_ABI_TAG [[gnu::abi_tag(GIWA_DETAIL_STRING(GIWA_ABI))]]
#endif

#if defined(__CUDACC__)
#define GIWA_DEVICE __device__
/// Marks a function for host and device. Empty for a host compiler, so that the same source compiles with g++ alone.
#define GIWA_HOST_DEVICE __host__ __device__
#else
#define GIWA_DEVICE
#define GIWA_HOST_DEVICE
#endif

// Precedes a loop over an array in registers. The loop is unrolled, so that every index is a constant and the array
// stays out of local memory. GIWA_NO_UNROLL keeps a loop small. Both are
// empty for host compilers, which warn about unknown pragmas.
#if defined(__CUDA_ARCH__)
#define GIWA_UNROLL _Pragma("unroll")
#define GIWA_NO_UNROLL _Pragma("unroll 1")
#else
#define GIWA_UNROLL
#define GIWA_NO_UNROLL
#endif

#endif
