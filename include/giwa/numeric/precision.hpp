// SPDX-License-Identifier: MIT
// The floating-point element types, and conversions between them that round to nearest.
#ifndef GIWA_NUMERIC_PRECISION_HPP
#define GIWA_NUMERIC_PRECISION_HPP

#include <giwa/base/std.hpp>

#if defined(__has_include) && !__has_include(<cuda_fp16.h>)
#error "giwa needs the headers of the CUDA toolkit, on the CPU too: add the toolkit's include/ to the include path."
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace giwa::inline GIWA_ABI {

/// The element types. The 16-bit ones are CUDA's.
///@{
using fp16 = __half;
using bf16 = __nv_bfloat16;
using fp32 = float;
using fp64 = double;
///@}

/// Traits of an element type. Not defined for other types.
template <class T>
struct precision_of;

namespace detail {
template <int Significand>
struct precision_base {
  static constexpr int significand_bits = Significand;  // with the leading one that is not stored
};
}  // namespace detail

template <>
struct precision_of<fp16> : detail::precision_base<11> {};
template <>
struct precision_of<bf16> : detail::precision_base<8> {};
template <>
struct precision_of<fp32> : detail::precision_base<24> {};
template <>
struct precision_of<fp64> : detail::precision_base<53> {};

/// What convert<> converts: an element type, or a type that is only stored, as e4m3 of `numeric/fp8.hpp`.
template <class T>
concept floating_format = requires { precision_of<T>::significand_bits; };

/// An element type of giwa's tiles and kernels: fp16, bf16, fp32 or fp64.
template <class T>
concept floating_element = floating_format<T> && sizeof(T) >= 2;

/// Converts between formats: `convert<fp16>{}(x)` rounds once, to nearest, ties to even. Values that are too large
/// become infinity, 448 in e4m3, 127 in int8_code, or 7 in int4_pair; NaN stays NaN, or becomes 0 in the codes.
/// `for_all(s, elementwise{out, in}, convert<fp16>{})` converts an array.
template <floating_format To>
struct convert {
  /// Returns x, rounded to the nearest To, ties to even.
  template <floating_format From>
  GIWA_HOST_DEVICE To operator()(From x) const {
    if constexpr (stdlib::same_as<To, From>)
      return x;
    else if constexpr (stdlib::same_as<From, fp16>)
      return (*this)(__half2float(x));
    else if constexpr (stdlib::same_as<From, bf16>)
      return (*this)(__bfloat162float(x));
    else if constexpr (stdlib::same_as<To, fp16>)
      return from_wide(x);
    else if constexpr (stdlib::same_as<To, bf16>)
      return from_wide(x);
    else
      return static_cast<To>(x);
  }

 private:
  // double goes to 16 bits directly: by way of float it would be rounded twice.
  template <class Wide>
  GIWA_HOST_DEVICE static To from_wide(Wide x) {
    if constexpr (stdlib::same_as<To, fp16>)
      return stdlib::same_as<Wide, double> ? __double2half(static_cast<double>(x))
                                           : __float2half_rn(static_cast<float>(x));
    else
      return stdlib::same_as<Wide, double> ? __double2bfloat16(static_cast<double>(x))
                                           : __float2bfloat16_rn(static_cast<float>(x));
  }
};

/// Two 16-bit elements in one 32-bit register, the first in the low half.
template <class T>
struct packed_pair;
/// CUDA's pair of fp16.
template <>
struct packed_pair<fp16> {
  using type = __half2;  ///< the register
};
/// CUDA's pair of bf16.
template <>
struct packed_pair<bf16> {
  using type = __nv_bfloat162;  ///< the register
};

/// Rounds two floats to nearest and packs them. One instruction on the device.
template <class T>
  requires(stdlib::same_as<T, fp16> || stdlib::same_as<T, bf16>)
GIWA_HOST_DEVICE typename packed_pair<T>::type pack(float low, float high) {
  if constexpr (stdlib::same_as<T, fp16>)
    return __floats2half2_rn(low, high);
  else
    return __floats2bfloat162_rn(low, high);
}

}  // namespace giwa::inline GIWA_ABI

#endif
