// SPDX-License-Identifier: MIT
// Annotations of the host executor for AddressSanitizer and ThreadSanitizer; without a sanitizer they are empty.
#ifndef GIWA_GRID_SANITIZER_HPP
#define GIWA_GRID_SANITIZER_HPP

#include <giwa/base/macros.hpp>

#if defined(__SANITIZE_ADDRESS__)  // GCC
#define GIWA_DETAIL_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define GIWA_DETAIL_TSAN 1
#elif defined(__has_feature)  // Clang
#if __has_feature(address_sanitizer)
#define GIWA_DETAIL_ASAN 1
#elif __has_feature(thread_sanitizer)
#define GIWA_DETAIL_TSAN 1
#endif
#endif
#ifndef GIWA_DETAIL_ASAN
#define GIWA_DETAIL_ASAN 0
#endif
#ifndef GIWA_DETAIL_TSAN
#define GIWA_DETAIL_TSAN 0
#endif

// The types of the executor differ with the sanitizer. Each variant has its own inline namespace, so that files built with
// and without a sanitizer can be linked together.
#if GIWA_DETAIL_ASAN
#define GIWA_DETAIL_SANITIZER_TAG with_asan
#elif GIWA_DETAIL_TSAN
#define GIWA_DETAIL_SANITIZER_TAG with_tsan
#else
#define GIWA_DETAIL_SANITIZER_TAG without_sanitizer
#endif

#if GIWA_DETAIL_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if GIWA_DETAIL_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {  // functions of the run-time library that no header declares
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
// A function whose own accesses ThreadSanitizer ignores: bookkeeping of the executor, which fibers share.
#define GIWA_DETAIL_NO_TSAN __attribute__((no_sanitize("thread")))
#else
#define GIWA_DETAIL_NO_TSAN
#endif

namespace giwa::inline GIWA_ABI::detail {

/// For ThreadSanitizer: everything before a release of `variable` happens before everything after a later acquire of it.
inline void order_release([[maybe_unused]] void* variable) {
#if GIWA_DETAIL_TSAN
  __tsan_release(variable);
#endif
}
inline void order_acquire([[maybe_unused]] void* variable) {
#if GIWA_DETAIL_TSAN
  __tsan_acquire(variable);
#endif
}

/// During the lifetime of an object ThreadSanitizer ignores all accesses of this thread, also those in memcpy, malloc and
/// free.
struct ignored_accesses {
#if GIWA_DETAIL_TSAN
  ignored_accesses() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~ignored_accesses() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  ignored_accesses() {}
#endif
  ignored_accesses(const ignored_accesses&) = delete;
  ignored_accesses& operator=(const ignored_accesses&) = delete;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
