// SPDX-License-Identifier: MIT
// fp32 numbers as sums of two fp16 numbers, hi and lo, for products on tensor cores with fp32 accuracy.
#ifndef GIWA_NUMERIC_SPLIT_HPP
#define GIWA_NUMERIC_SPLIT_HPP

#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI {

/// An fp32 number x as the sum of two fp16 numbers: hi + lo is x to within 2^-22 |x|, or 2^-25 if that is larger: half
/// of the smallest fp16. The product of two such numbers is hi hi + hi lo + lo hi, each exact in fp32; the omitted lo
/// lo is below 2^-22 of it. Source: Markidis et al. 2018; Ootomo and Yokota 2022, "Recovering single precision accuracy
/// from Tensor Cores".
struct split_fp16 {
  /// The rounded number, and its rounding error, rounded.
  ///@{
  fp16 hi, lo;
  ///@}
};

/// Splits x, where |x| is below 65520, the end of fp16: power_of_two_for() scales x into that range.
GIWA_HOST_DEVICE inline split_fp16 split(float x) {
  const fp16 hi = __float2half_rn(x);
  return {hi, __float2half_rn(x - __half2float(hi))};
}

/// Two split numbers, packed in registers, the first in the low halves.
struct split_fp16_pair {
  /// As in split_fp16, of both numbers.
  ///@{
  packed_pair<fp16>::type hi, lo;
  ///@}
};

/// Splits two numbers at once, each below 65520 in magnitude.
GIWA_HOST_DEVICE inline split_fp16_pair split(float first, float second) {
  const auto hi = pack<fp16>(first, second);
  return {hi, pack<fp16>(first - __low2float(hi), second - __high2float(hi))};
}

/// Returns 2^n for n from -126 to 127.
GIWA_HOST_DEVICE constexpr float power_of_two(int n) {
  return __builtin_bit_cast(float, static_cast<unsigned>(n + 127) << 23);
}

/// Returns the exponent n of a scale for numbers up to `largest` >= 0: divided by 2^n, the largest lies in [2^14,
/// 2^15). There split() loses least: numbers down to 2^-17 of the largest are kept to within 2^-22 of themselves. n is
/// at least -126; numbers that stay below 2^14 for that reason have too few digits themselves to lose more. Returns 0
/// for 0 and NaN.
GIWA_HOST_DEVICE constexpr int exponent_for(float largest) {
  if (!(largest > 0)) return 0;
  const int exponent = static_cast<int>(__builtin_bit_cast(unsigned, largest) >> 23) - 127;  // -127: subnormal
  return exponent < -112 ? -126 : exponent - 14;
}
/// Returns the factor 2^-exponent_for(largest), which scales numbers up to `largest` into that range.
GIWA_HOST_DEVICE constexpr float power_of_two_for(float largest) { return power_of_two(-exponent_for(largest)); }

}  // namespace giwa::inline GIWA_ABI

#endif
