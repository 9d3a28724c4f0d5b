// SPDX-License-Identifier: MIT
// named_range: a stretch of the program with a name, which Nsight Systems shows; nothing unless GIWA_ENABLE_NVTX is defined.
#ifndef GIWA_DEVICE_NAMED_RANGE_HPP
#define GIWA_DEVICE_NAMED_RANGE_HPP

#include <giwa/base/macros.hpp>

// The two meanings of the class have two names, so that files of one program may be compiled with and without it.
#if defined(GIWA_ENABLE_NVTX)
#include <nvtx3/nvToolsExt.h>
#define GIWA_DETAIL_NVTX_TAG nvtx_on
#else
#define GIWA_DETAIL_NVTX_TAG nvtx_off
#endif

namespace giwa::inline GIWA_ABI {
inline namespace GIWA_DETAIL_NVTX_TAG {

/// An NVTX range of the calling thread, from here to the end of the scope: `const giwa::named_range range("attention");`. Ranges
/// nest. In a file compiled with -DGIWA_ENABLE_NVTX it is there for profilers (`nsys profile`), and costs two calls where
/// none listens; in others it is an empty object, and nothing of NVTX is included. It marks when the host gives out work, and the
/// profiler shows the kernels that were launched in it.
class [[nodiscard]] named_range {
 public:
#if defined(GIWA_ENABLE_NVTX)
  explicit named_range(const char* name) { nvtxRangePushA(name); }
  ~named_range() { nvtxRangePop(); }
#else
  /// From here to the end of the scope; `name` ends with a zero.
  explicit named_range(const char*) {}
  ~named_range() {}  // so that a range that is only there to last is no unused variable
#endif
  named_range(named_range&&) = delete;
};

}  // namespace GIWA_DETAIL_NVTX_TAG
}  // namespace giwa::inline GIWA_ABI

#undef GIWA_DETAIL_NVTX_TAG

#endif
