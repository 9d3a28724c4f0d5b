// SPDX-License-Identifier: MIT
// fp32 numbers in two fp16 pieces, for products on tensor cores that keep fp32's digits.
#ifndef GIWA_NUMERIC_SPLIT_HPP
#define GIWA_NUMERIC_SPLIT_HPP

#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI {

/// high + low is a number x to 2^-22 |x| or, where that is less, to 2^-25: half of the smallest fp16. The product of two numbers
/// is high high + high low + low high, each exact in fp32; what is left out, low low, is below 2^-22 of it. (Markidis et al.
/// 2018; Ootomo and Yokota 2022, "Recovering single precision accuracy from Tensor Cores".)
struct fp16_pieces {
  /// The rounded number, and what the rounding lost, rounded.
  ///@{
  fp16 high, low;
  ///@}
};

/// x in pieces; |x| is below 65520, the end of fp16: power_of_two_for() brings it there.
GIWA_HOST_DEVICE inline fp16_pieces split(float x) {
  const fp16 high = __float2half_rn(x);
  return {high, __float2half_rn(x - __half2float(high))};
}

/// The pieces of two numbers, packed, those of the first in the low halves.
struct packed_pieces {
  /// As in fp16_pieces, of both numbers.
  ///@{
  packed_pair<fp16>::type high, low;
  ///@}
};
/// Two numbers in pieces at once.
GIWA_HOST_DEVICE inline packed_pieces split(float first, float second) {
  const auto high = pack<fp16>(first, second);
  return {high, pack<fp16>(first - __low2float(high), second - __high2float(high))};
}

/// 2^n for n from -126 to 127.
GIWA_HOST_DEVICE constexpr float power_of_two(int n) {
  return __builtin_bit_cast(float, static_cast<unsigned>(n + 127) << 23);
}

/// The exponent of the power of two by which numbers up to `largest` (not negative) are divided to lie below 2^15, and not
/// below 2^14: there pieces reach farthest down, to 2^-22 |x| for numbers down to 2^-17 of the largest. At least -126; what
/// then stays below 2^14 is too coarse itself to lose more. 0 for 0 and NaN.
GIWA_HOST_DEVICE constexpr int exponent_for(float largest) {
  if (!(largest > 0)) return 0;
  const int exponent = static_cast<int>(__builtin_bit_cast(unsigned, largest) >> 23) - 127;  // -127: subnormal
  return exponent < -112 ? -126 : exponent - 14;
}
/// The power of two that brings numbers up to `largest` there.
GIWA_HOST_DEVICE constexpr float power_of_two_for(float largest) { return power_of_two(-exponent_for(largest)); }

}  // namespace giwa::inline GIWA_ABI

#endif
