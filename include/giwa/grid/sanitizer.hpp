// SPDX-License-Identifier: MIT
// What the host executor tells AddressSanitizer and ThreadSanitizer; without them, all of it is nothing.
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

// The executor's types differ with the sanitizer: each kind has its own names, so that files built with one and without
// can meet in a program.
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
extern "C" {  // of the run-time library; no header has them
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
// A function whose own accesses ThreadSanitizer does not see: the executor's bookkeeping, which fibers share.
#define GIWA_DETAIL_NO_TSAN __attribute__((no_sanitize("thread")))
#else
#define GIWA_DETAIL_NO_TSAN
#endif

namespace giwa::inline GIWA_ABI::detail {

/// What happened before a release of `variable` happens before what follows an acquire of it.
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

/// While it lives, ThreadSanitizer sees no access of this thread, also none in memcpy, malloc and free.
struct unseen_accesses {
#if GIWA_DETAIL_TSAN
  unseen_accesses() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~unseen_accesses() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  unseen_accesses() {}
#endif
  unseen_accesses(const unseen_accesses&) = delete;
  unseen_accesses& operator=(const unseen_accesses&) = delete;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
