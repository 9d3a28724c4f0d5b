// SPDX-License-Identifier: MIT
// Constants of floating-point types: infinity, NaN, log2 e and ln 2.
#ifndef GIWA_NUMERIC_CONSTANTS_HPP
#define GIWA_NUMERIC_CONSTANTS_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::detail {

// By their bits, because numeric_limits has no constexpr functions for them under NVRTC before 12.9.
template <class T>
inline constexpr T infinity_of = static_cast<T>(__builtin_bit_cast(double, uint64{0x7ff0000000000000}));
template <class T>
inline constexpr T nan_of = static_cast<T>(__builtin_bit_cast(double, uint64{0x7ff8000000000000}));
template <class T>
inline constexpr T log2_e = static_cast<T>(1.44269504088896340736);
template <class T>
inline constexpr T ln_2 = static_cast<T>(0.693147180559945309417);

}  // namespace giwa::inline GIWA_ABI::detail

#endif
