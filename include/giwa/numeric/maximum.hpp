// SPDX-License-Identifier: MIT
// The larger of two numbers, in one instruction where the device has one.
#ifndef GIWA_NUMERIC_MAXIMUM_HPP
#define GIWA_NUMERIC_MAXIMUM_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// max(a, b). If one of two floats is NaN, the result is the other, as of fmaxf. If one of two doubles is NaN, the
/// result is either of them.
template <class T>
GIWA_HOST_DEVICE T larger_of(T a, T b) {
  if constexpr (stdlib::same_as<T, float>) {
#if defined(__CUDA_ARCH__)
    return ::fmaxf(a, b);
#else
    return a < b || a != a ? b : a;
#endif
  } else {
    return a > b ? a : b;
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
