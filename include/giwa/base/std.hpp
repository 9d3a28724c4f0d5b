// SPDX-License-Identifier: MIT
// The standard library for host and device code: the host's, or that of the toolkit under NVRTC; and the integer types.
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

struct __half2;  // CUDA's, of cuda_fp16.h and cuda_bf16.h
struct __nv_bfloat162;

namespace giwa::inline GIWA_ABI {

/// The type of every index, count and offset into memory: 64 bits, signed.
using int64 = stdlib::int64_t;
/// For bit patterns and modular arithmetic.
///@{
using uint64 = stdlib::uint64_t;
using uint32 = stdlib::uint32_t;
///@}

/// The largest int64. A value, because numeric_limits::max() is a host function that device code cannot call.
inline constexpr int64 max_int64 = 9223372036854775807;

/// Whether objects of type T can be copied to a GPU and back byte by byte. True of trivially copyable types, and of
/// three kinds of type that are not: CUDA's pairs of 16-bit numbers; nvcc's type of a __host__ __device__ lambda, which
/// hides its captures, so that a captured std::vector is not detected; and user types for which the program specialises
/// this as true.
template <class T>
inline constexpr bool goes_as_bytes =
#if defined(__CUDACC_EXTENDED_LAMBDA__)
    __nv_is_extended_host_device_lambda_closure_type(T) ||
#endif
    stdlib::is_trivially_copyable_v<T> || stdlib::is_same_v<stdlib::remove_cv_t<T>, ::__half2> ||
    stdlib::is_same_v<stdlib::remove_cv_t<T>, ::__nv_bfloat162>;

namespace detail {
template <class...>
inline constexpr bool always_false = false;  // for a static_assert that fires when a template is instantiated

/// Takes the place of a member that some instantiations of a template do not have.
struct nothing {};
}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
