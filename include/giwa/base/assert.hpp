// SPDX-License-Identifier: MIT
// GIWA_ASSERT: a check inside host and device code, active in checked builds only.
#ifndef GIWA_BASE_ASSERT_HPP
#define GIWA_BASE_ASSERT_HPP

#include <giwa/base/macros.hpp>

/// 1 activates the checks: -DGIWA_CHECKED=1. All files of a program should be compiled with the same value.
#ifndef GIWA_CHECKED
#define GIWA_CHECKED 0
#endif

#if GIWA_CHECKED
#if !defined(__CUDACC_RTC__)
#include <cstdio>
#include <cstdlib>
#endif

namespace giwa::inline GIWA_ABI::detail {

/// Prints what failed, the file and line and the thread. Then it stops the kernel (the stream reports that) or the
/// program.
[[noreturn]] GIWA_HOST_DEVICE inline void assertion_failed(const char* condition, const char* sentence,
                                                           const char* file, int line) {
#if defined(__CUDA_ARCH__)
  ::printf("%s:%d: %s [%s] in block (%u, %u, %u), thread (%u, %u, %u)\n", file, line, sentence, condition, blockIdx.x,
           blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  __trap();
#else
  ::std::fprintf(stderr, "%s:%d: %s [%s]\n", file, line, sentence, condition);
  ::std::abort();
#endif
}

}  // namespace giwa::inline GIWA_ABI::detail

/// Checks `condition` in checked builds and expands to nothing in others. `sentence` tells the user what is wrong.
#define GIWA_ASSERT(condition, sentence) \
  ((condition) ? static_cast<void>(0) : ::giwa::detail::assertion_failed(#condition, sentence, __FILE__, __LINE__))
#else
#define GIWA_ASSERT(condition, sentence) static_cast<void>(0)
#endif

#endif
