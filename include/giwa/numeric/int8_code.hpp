// SPDX-License-Identifier: MIT
// int8_code: 8-bit integers that stand for themselves times a scale.
#ifndef GIWA_NUMERIC_INT8_CODE_HPP
#define GIWA_NUMERIC_INT8_CODE_HPP

#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI {

/// An integer of 8 bits that stands for itself times a scale, which is elsewhere. It is between -128 and 127; conversions give
/// -127 to 127, so that codes of x and -x have one magnitude. There is no NaN and no infinity. The type has the bits of
/// std::int8_t and of PyTorch's int8, so that pointers to those may be cast. convert<> converts from and to the other types;
/// there is no arithmetic.
class int8_code {
 public:
  /// Not initialised, as the other element types.
  int8_code() = default;
  /// x rounded to the nearest integer, ties to even. Beyond 127 in magnitude, infinity included, it is 127 with x's sign; NaN
  /// is 0.
  ///@{
  GIWA_HOST_DEVICE explicit constexpr int8_code(float x)
      : bits_(static_cast<unsigned char>(__builtin_bit_cast(uint32, limited(x) + 0x1.8p23f))) {}
  GIWA_HOST_DEVICE explicit constexpr int8_code(double x)
      : bits_(static_cast<unsigned char>(__builtin_bit_cast(uint64, limited(x) + 0x1.8p52))) {}
  ///@}
  /// The integer with these bits, in two's complement.
  GIWA_HOST_DEVICE static constexpr int8_code from_bits(unsigned char bits) {
    int8_code x(0.0f);
    x.bits_ = bits;
    return x;
  }
  /// The bits of the integer.
  GIWA_HOST_DEVICE constexpr unsigned char bits() const { return bits_; }

  /// The integer, exactly.
  ///@{
  GIWA_HOST_DEVICE explicit constexpr operator float() const {
    return static_cast<float>(static_cast<int>(bits_ ^ 0x80u) - 128);
  }
  GIWA_HOST_DEVICE explicit constexpr operator double() const { return static_cast<float>(*this); }
  ///@}

 private:
  // A sum with 1.5 * 2^(digits) has the rounded integer in its lowest bits.
  template <class Wide>
  GIWA_HOST_DEVICE static constexpr Wide limited(Wide x) {
    return x > 127 ? Wide{127} : x < -127 ? Wide{-127} : x == x ? x : Wide{0};
  }
  unsigned char bits_;
};

/// The traits of int8_code: convert<> takes it, but it is no floating_element.
template <>
struct precision_of<int8_code> : detail::precision_base<8> {};

}  // namespace giwa::inline GIWA_ABI

#endif
