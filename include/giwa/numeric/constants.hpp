// SPDX-License-Identifier: MIT
// Constants of floating-point types: infinity, NaN, log2 e and ln 2.
#ifndef GIWA_NUMERIC_CONSTANTS_HPP
#define GIWA_NUMERIC_CONSTANTS_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::detail {

template <class T>
inline constexpr T infinity_of = stdlib::numeric_limits<T>::infinity();
template <class T>
inline constexpr T nan_of = stdlib::numeric_limits<T>::quiet_NaN();
template <class T>
inline constexpr T log2_e = static_cast<T>(1.44269504088896340736);
template <class T>
inline constexpr T ln_2 = static_cast<T>(0.693147180559945309417);

}  // namespace giwa::inline GIWA_ABI::detail

#endif
