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

struct __half2;  // CUDA's, of cuda_fp16.h and cuda_bf16.h
struct __nv_bfloat162;

namespace giwa::inline GIWA_ABI {

/// Every index, count and offset into memory is 64 bits wide and signed.
using int64 = stdlib::int64_t;
/// For bits, and where counting without a sign is meant.
///@{
using uint64 = stdlib::uint64_t;
using uint32 = stdlib::uint32_t;
///@}

/// The largest int64, as a value: a function of the standard library cannot be called in device code.
inline constexpr int64 max_int64 = 9223372036854775807;

/// Whether a T may go to the GPU and back as its bytes, as every trivially copyable type may. Three kinds of type have
/// constructors of their own and count as bytes all the same: CUDA's pairs of 16-bit numbers; nvcc's class for a
/// __host__ __device__ lambda, which hides what it captures, so that a captured std::vector is not noticed; and types of
/// yours for which you specialise this as true.
template <class T>
inline constexpr bool goes_as_bytes =
#if defined(__CUDACC_EXTENDED_LAMBDA__)
    __nv_is_extended_host_device_lambda_closure_type(T) ||
#endif
    stdlib::is_trivially_copyable_v<T> || stdlib::is_same_v<stdlib::remove_cv_t<T>, ::__half2> ||
    stdlib::is_same_v<stdlib::remove_cv_t<T>, ::__nv_bfloat162>;

namespace detail {
template <class...>
inline constexpr bool always_false = false;  // for a static_assert that fires only when a template is used
}

}  // namespace giwa::inline GIWA_ABI

#endif
