// SPDX-License-Identifier: MIT
// Integer arithmetic: division that rounds up, overflow checks, saturating arithmetic, high halves of products.
#ifndef GIWA_NUMERIC_INTEGER_HPP
#define GIWA_NUMERIC_INTEGER_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// Returns n / d rounded up, for n >= 0 and d > 0: how many groups of d cover n. Does not overflow.
template <stdlib::integral T>
GIWA_HOST_DEVICE constexpr T ceil_div(T n, stdlib::type_identity_t<T> d) {
  return static_cast<T>(n / d + (n % d != 0 ? 1 : 0));
}

/// Returns n rounded up to a multiple of d, for n >= 0 and d > 0. The result must fit in T.
template <stdlib::integral T>
GIWA_HOST_DEVICE constexpr T round_up(T n, stdlib::type_identity_t<T> d) {
  return static_cast<T>(ceil_div(n, d) * d);
}

/// Returns whether n is a power of two. Zero and negative numbers are not.
template <stdlib::integral T>
GIWA_HOST_DEVICE constexpr bool is_power_of_two(T n) {
  return n > 0 && (n & (n - 1)) == 0;
}

/// Returns whether a * b is larger than the largest int64, for a, b >= 0.
GIWA_HOST_DEVICE constexpr bool product_overflows(int64 a, int64 b) { return b != 0 && a > max_int64 / b; }

/// Returns a * b modulo 2^64: for sizes that are not checked yet, where an overflow must not be undefined behaviour.
GIWA_HOST_DEVICE constexpr int64 wrapping_product(int64 a, int64 b) {
  return static_cast<int64>(static_cast<uint64>(a) * static_cast<uint64>(b));
}

namespace detail {

/// Returns a + b and a * b for a, b >= 0, or the largest int64 if the result is larger.
GIWA_HOST_DEVICE constexpr int64 saturating_sum(int64 a, int64 b) { return a > max_int64 - b ? max_int64 : a + b; }
GIWA_HOST_DEVICE constexpr int64 saturating_product(int64 a, int64 b) {
  return product_overflows(a, b) ? max_int64 : a * b;
}

/// Returns a + b, clamped to the range from -(2^31 - 1) to 2^31 - 1.
GIWA_HOST_DEVICE constexpr int saturating_sum(int a, int b) {
  constexpr int64 most = (int64{1} << 31) - 1;
  const int64 sum = int64{a} + b;
  return static_cast<int>(sum > most ? most : sum < -most ? -most : sum);
}

}  // namespace detail

/// Returns the upper 64 bits of the 128-bit product.
GIWA_HOST_DEVICE constexpr uint64 multiply_high(uint64 a, uint64 b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __umul64hi(a, b);
#endif
  const uint64 a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const uint64 middle = a1 * b0 + ((a0 * b0) >> 32);  // cannot overflow: (2^32 - 1)^2 + 2^32 - 1 < 2^64
  const uint64 carry = (middle & 0xffffffffu) + a0 * b1;
  return a1 * b1 + (middle >> 32) + (carry >> 32);
}

/// Returns the number of bits of x that are set.
GIWA_HOST_DEVICE constexpr int popcount(uint32 x) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __popc(x);
#endif
  x -= x >> 1 & 0x55555555u;
  x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
  return static_cast<int>(((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}

/// Returns the upper 32 bits of the 64-bit product.
GIWA_HOST_DEVICE constexpr uint32 multiply_high(uint32 a, uint32 b) {
#if defined(__CUDA_ARCH__)
  // One instruction together with the lower half; a shifted 64-bit product takes several.
  if (!__builtin_is_constant_evaluated()) return __umulhi(a, b);
#endif
  return static_cast<uint32>((static_cast<uint64>(a) * b) >> 32);
}

}  // namespace giwa::inline GIWA_ABI

#endif
