// SPDX-License-Identifier: MIT
// int4_pair: two 4-bit integers in a byte.
#ifndef GIWA_NUMERIC_INT4_PAIR_HPP
#define GIWA_NUMERIC_INT4_PAIR_HPP

#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI {

/// Two neighbouring integers of 4 bits, the first one in the low bits, that stand for themselves times a scale, which is elsewhere.
/// They are between -8 and 7; conversions give -7 to 7, so that codes of x and -x have one magnitude. There is no NaN and no infinity.
/// Pointers to bytes, as PyTorch's uint8, may be cast. A row of n numbers has n / 2 pairs. There is no arithmetic.
class int4_pair {
 public:
  /// Not initialised, as the element types.
  int4_pair() = default;
  /// Numbers rounded to the nearest integers, ties to even. Beyond 7 in magnitude, infinity included, a code is 7 with the number's
  /// sign; NaN is 0.
  ///@{
  GIWA_HOST_DEVICE constexpr int4_pair(float first, float second)
      : bits_(static_cast<unsigned char>(code_of(first) | code_of(second) << 4)) {}
  GIWA_HOST_DEVICE explicit constexpr int4_pair(float both) : int4_pair(both, both) {}
  ///@}
  /// The integers with these bits, each in two's complement.
  GIWA_HOST_DEVICE static constexpr int4_pair from_bits(unsigned char bits) {
    int4_pair x(0.0f);
    x.bits_ = bits;
    return x;
  }
  /// The bits of both.
  GIWA_HOST_DEVICE constexpr unsigned char bits() const { return bits_; }
  /// Integer 0 or 1, exactly.
  GIWA_HOST_DEVICE constexpr float operator[](int i) const {
    return static_cast<float>(static_cast<int>((bits_ >> 4 * i & 15u) ^ 8u) - 8);
  }

 private:
  // A sum with 1.5 * 2^23 has the rounded integer in its lowest bits.
  GIWA_HOST_DEVICE static constexpr uint32 code_of(float x) {
    const float limited = x > 7 ? 7.0f : x < -7 ? -7.0f : x == x ? x : 0.0f;
    return __builtin_bit_cast(uint32, limited + 0x1.8p23f) & 15u;
  }
  unsigned char bits_;
};

/// The traits of int4_pair: convert<> to it makes two equal numbers, and it is no floating_element.
template <>
struct precision_of<int4_pair> : detail::precision_base<4> {};

}  // namespace giwa::inline GIWA_ABI

#endif
