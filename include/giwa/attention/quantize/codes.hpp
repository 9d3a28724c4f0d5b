// SPDX-License-Identifier: MIT
// Codes: numbers divided by a scale and rounded to 8 or 4 bits, and the scale that fits the largest of them.
#ifndef GIWA_ATTENTION_QUANTIZE_CODES_HPP
#define GIWA_ATTENTION_QUANTIZE_CODES_HPP

#include <giwa/arch/math.hpp>
#include <giwa/arch/round_fp8.hpp>
#include <giwa/attention/problem/traits.hpp>
#include <giwa/numeric/constants.hpp>
#include <giwa/numeric/maximum.hpp>
#include <giwa/numeric/multiply_add.hpp>
#include <giwa/tile/element_run.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Divides by a scale. With one correction of the product by the reciprocal, quotients that fp32 holds are exact and
/// others are within a unit in the last place; beyond fp32 the product stays.
struct scale_divisor {
  float scale = 1, reciprocal = 1;

  GIWA_HOST_DEVICE static scale_divisor of(float scale) {
#if defined(__CUDA_ARCH__)
    return {scale, arch::reciprocal(scale)};
#else
    return {scale, 1.0f / scale};
#endif
  }
  GIWA_HOST_DEVICE float operator()(float x) const {
    const float quotient = fma_with_subnormals(x, reciprocal, -0.0f);
    const float corrected = fma_with_subnormals(fma_with_subnormals(-quotient, scale, x), reciprocal, quotient);
    return corrected - corrected == 0 ? corrected : quotient;
  }
};

/// Rounds four numbers to 8 bits each, as the type does, the first into the lowest byte.
///@{
GIWA_HOST_DEVICE inline uint32 round_four(e4m3, const float (&x)[4]) { return arch::fp32_to_e4m3(x); }
GIWA_HOST_DEVICE inline uint32 round_four(int8_code, const float (&x)[4]) {
#if defined(__CUDA_ARCH__)  // NaN becomes 0; the type's own way takes twice the instructions
  uint32 code[4];
  GIWA_UNROLL
  for (int i = 0; i < 4; ++i) code[i] = static_cast<uint32>(::max(::min(__float2int_rn(x[i]), 127), -127));
  return __byte_perm(__byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410);
#else
  uint32 four = 0;
  for (int i = 0; i < 4; ++i) four |= static_cast<uint32>(int8_code(x[i]).bits()) << (8 * i);
  return four;
#endif
}
///@}

/// Rounds and writes a run of `Count` numbers; divide(i, x) divides number i by its scale, if elements are of 8 or 4 bits.
template <class To, int Count, class Divide>
GIWA_HOST_DEVICE void round_run(To* to, const float* x, const Divide& divide) {
  static_assert(Count % codes_of<To> == 0);
  element_run<To, Count / codes_of<To>> run;
  if constexpr (codes_of<To> == 2 && Count == 2) {
    run.element = To(divide(0, x[0]), divide(1, x[1]));
  } else if constexpr (codes_of<To> == 2) {
    for (int i = 0; i < Count; i += 2) run.set(i / 2, To(divide(i, x[i]), divide(i + 1, x[i + 1])));
  } else if constexpr (Count == 1 && sizeof(To) == 1) {
    run.element = To(divide(0, x[0]));
  } else if constexpr (Count == 1) {
    run.element = convert<To>{}(x[0]);
  } else if constexpr (sizeof(To) == 1) {
    for (int i = 0; i < Count; i += 4)
      run.set(i, round_four(To{}, {divide(i, x[i]), divide(i + 1, x[i + 1]), divide(i + 2, x[i + 2]),
                                   divide(i + 3, x[i + 3])}));
  } else if constexpr (sizeof(To) == 2) {
    for (int i = 0; i < Count; i += 2) run.set(i, pack<To>(x[i], x[i + 1]));
  } else {
    for (int i = 0; i < Count; ++i) run.set(i, x[i]);
  }
  run.write(to);
}

/// The largest number of a type of 8 or 4 bits.
///@{
GIWA_HOST_DEVICE constexpr float largest_of(e4m3) { return 448; }
GIWA_HOST_DEVICE constexpr float largest_of(int8_code) { return 127; }
GIWA_HOST_DEVICE constexpr float largest_of(int4_pair) { return 7; }
///@}

/// The scale with which numbers up to `largest` in magnitude become codes, at least 2^-126. It does not decrease as `largest` grows,
/// so the largest of several scales is the scale of all their numbers.
template <class Code>
GIWA_HOST_DEVICE float scale_of(float largest) {
  constexpr float share = 1 / largest_of(Code::from_bits(0));
  return larger_of(fma_with_subnormals(largest, share, -0.0f), 0x1p-126f);
}

/// The larger one of `largest` and |x|, or `largest` if x is NaN or infinity.
GIWA_HOST_DEVICE inline float larger_finite(float largest, float x) {
  const float size = arch::magnitude(x);
  return size < infinity_of<float> ? larger_of(largest, size) : largest;
}
/// The same for the elements of a run.
template <class T, int Count>
GIWA_HOST_DEVICE float larger_finite(float largest, const element_run<T, Count>& run) {
  GIWA_UNROLL
  for (int i = 0; i < Count; ++i) largest = larger_finite(largest, convert<float>{}(run.get(i)));
  return largest;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
