// SPDX-License-Identifier: MIT
// The standard library that giwa may use everywhere: the host's own, or the toolkit's under run-time compilation.
#ifndef GIWA_BASE_STD_HPP
#define GIWA_BASE_STD_HPP

#include <giwa/base/macros.hpp>

#if defined(__CUDACC_RTC__)  // NVRTC has no standard headers; libcu++ carries the same names under cuda::std
#include <cuda/std/concepts>
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#include <cuda/std/limits>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
namespace giwa::inline GIWA_ABI {
namespace stdlib = ::cuda::std;
}
#else
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
namespace giwa::inline GIWA_ABI {
/// The standard library: ::std, or ::cuda::std under NVRTC.
namespace stdlib = ::std;
}  // namespace giwa::inline GIWA_ABI
#endif

namespace giwa::inline GIWA_ABI {

/// Every index, count and offset into memory is 64 bits wide and signed.
using int64 = stdlib::int64_t;
using uint64 = stdlib::uint64_t;
using uint32 = stdlib::uint32_t;

/// The largest int64, as a value: a function of the standard library cannot be called in device code.
inline constexpr int64 max_int64 = 9223372036854775807;

namespace detail {
template <class...>
inline constexpr bool always_false = false;  // for a static_assert that fires only when a template is used
}

}  // namespace giwa::inline GIWA_ABI

#endif
