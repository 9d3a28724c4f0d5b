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
  fp16 high, low;
};

/// x in pieces; |x| is below 65520, the end of fp16: power_of_two_for() brings it there.
GIWA_HOST_DEVICE inline fp16_pieces split(float x) {
  const fp16 high = __float2half_rn(x);
  return {high, __float2half_rn(x - __half2float(high))};
}

/// The power of two that brings numbers up to `largest` (not negative, finite) below 2^15, and not below 2^14: there pieces
/// reach farthest down, and all digits are left to numbers down to 2^-28 of the largest. 1 for 0. Kept in [2^-112, 2^126], so that
/// it and its reciprocal are normal numbers.
GIWA_HOST_DEVICE constexpr float power_of_two_for(float largest) {
  constexpr int bias = 127, fraction = 23, lowest = bias - 112, highest = bias + 126;
  if (!(largest > 0)) return 1;
  const int exponent = static_cast<int>(__builtin_bit_cast(unsigned, largest) >> fraction);  // biased; 0: subnormal
  const int power = bias + 14 - (exponent - bias);
  const int kept = power < lowest ? lowest : power > highest ? highest : power;
  return __builtin_bit_cast(float, static_cast<unsigned>(kept) << fraction);
}

}  // namespace giwa::inline GIWA_ABI

#endif
