// SPDX-License-Identifier: MIT
// e4m3: 8-bit floating-point numbers, which are stored and converted but not computed with.
#ifndef GIWA_NUMERIC_FP8_HPP
#define GIWA_NUMERIC_FP8_HPP

#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The bits of x in e4m3, for an x of 32 or 64 bits in IEEE 754's layout.
template <class Bits, int FractionBits, int Bias>
GIWA_HOST_DEVICE constexpr unsigned char round_to_e4m3(Bits x) {
  constexpr int width = 8 * static_cast<int>(sizeof(Bits)), extra = FractionBits - 3;  // bits that rounding removes
  constexpr Bits one = 1, infinity = static_cast<Bits>(2 * Bias + 1) << FractionBits;
  const Bits magnitude = x & ~(one << (width - 1));
  const auto sign = static_cast<unsigned>(x >> (width - 8)) & 0x80u;
  if (magnitude > infinity) return 0x7f;
  const int exponent = static_cast<int>(magnitude >> FractionBits) - Bias;
  if (exponent > 8) return static_cast<unsigned char>(sign | 0x7eu);
  if (exponent < -10) return static_cast<unsigned char>(sign);  // below 2^-10, half of the smallest number
  // From 2^-6 on the exponent is stored and its bits are those of `magnitude`; below, numbers are multiples of 2^-9.
  const bool normal = exponent >= -6;
  const Bits fraction = magnitude & ((one << FractionBits) - 1);
  const Bits number =
      normal ? magnitude - (static_cast<Bits>(Bias - 7) << FractionBits) : fraction | one << FractionBits;
  const int drop = normal ? extra : extra - 6 - exponent;
  const Bits rounded = (number + (one << (drop - 1)) - 1 + (number >> drop & 1)) >> drop;
  return static_cast<unsigned char>(sign | (rounded < 0x7e ? static_cast<unsigned>(rounded) : 0x7eu));
}

}  // namespace detail

/// A floating-point number of 8 bits: sign, 4 bits of exponent, 3 of fraction. Largest 448, smallest normal 2^-6,
/// smallest 2^-9. It has a NaN, 0x7f and 0xff, but no infinity. The type has the bits of CUDA's __nv_fp8_e4m3 and of
/// PyTorch's float8_e4m3fn, so that pointers to those may be cast. convert<> converts from and to the other types;
/// there is no arithmetic. Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning".
class e4m3 {
 public:
  /// Not initialised, as the other element types.
  e4m3() = default;
  /// x rounded to the nearest number, ties to even. Beyond the largest, infinity included, it is the largest; NaN is
  /// 0x7f. An fp64 number is rounded once.
  ///@{
  GIWA_HOST_DEVICE explicit constexpr e4m3(float x)
      : bits_(detail::round_to_e4m3<uint32, 23, 127>(__builtin_bit_cast(uint32, x))) {}
  GIWA_HOST_DEVICE explicit constexpr e4m3(double x)
      : bits_(detail::round_to_e4m3<uint64, 52, 1023>(__builtin_bit_cast(uint64, x))) {}
  ///@}
  /// The number with these bits.
  GIWA_HOST_DEVICE static constexpr e4m3 from_bits(unsigned char bits) {
    e4m3 x(0.0f);
    x.bits_ = bits;
    return x;
  }
  /// The bits of the number.
  GIWA_HOST_DEVICE constexpr unsigned char bits() const { return bits_; }

  /// The number, exactly.
  ///@{
  GIWA_HOST_DEVICE explicit constexpr operator float() const {
    const uint32 magnitude = bits_ & 0x7fu, sign = static_cast<uint32>(bits_ & 0x80u) << 24;
    uint32 value = (magnitude << 20) + (120u << 23);  // the exponent's bias is 127 instead of 7
    if (magnitude < 8) value = __builtin_bit_cast(uint32, static_cast<float>(magnitude) * 0x1p-9f);
    if (magnitude == 0x7f) value = 0x7fc00000;
    return __builtin_bit_cast(float, sign | value);
  }
  GIWA_HOST_DEVICE explicit constexpr operator double() const { return static_cast<float>(*this); }
  ///@}

 private:
  unsigned char bits_;
};

/// The traits of e4m3: a floating_format, but no floating_element.
template <>
struct precision_of<e4m3> : detail::precision_base<4> {};

}  // namespace giwa::inline GIWA_ABI

#endif
