// SPDX-License-Identifier: MIT
// named_range: an NVTX range that profilers show. Does nothing unless GIWA_ENABLE_NVTX is defined.
#ifndef GIWA_DEVICE_NAMED_RANGE_HPP
#define GIWA_DEVICE_NAMED_RANGE_HPP

#include <giwa/base/macros.hpp>

// The class has one name with NVTX and another without, so that files of both kinds can be linked into one program.
#if defined(GIWA_ENABLE_NVTX)
#include <nvtx3/nvToolsExt.h>
#define GIWA_DETAIL_NVTX_TAG nvtx_on
#else
#define GIWA_DETAIL_NVTX_TAG nvtx_off
#endif

namespace giwa::inline GIWA_ABI {
inline namespace GIWA_DETAIL_NVTX_TAG {

/// An NVTX range of the calling thread until the end of the scope: `const giwa::named_range range("attention");`.
/// Ranges nest. It marks the time in which the host enqueues work; a profiler (`nsys profile`) also shows the kernels
/// launched in it. In files compiled with -DGIWA_ENABLE_NVTX it costs two function calls. In other files it is an empty
/// object, and NVTX is not included.
class [[nodiscard]] named_range {
 public:
#if defined(GIWA_ENABLE_NVTX)
  explicit named_range(const char* name) { nvtxRangePushA(name); }
  ~named_range() { nvtxRangePop(); }
#else
  /// Begins the range. `name` is zero-terminated.
  explicit named_range(const char*) {}
  ~named_range() {}  // not trivial, so that compilers do not call a range an unused variable
#endif
  named_range(named_range&&) = delete;
};

}  // namespace GIWA_DETAIL_NVTX_TAG
}  // namespace giwa::inline GIWA_ABI

#undef GIWA_DETAIL_NVTX_TAG

#endif
