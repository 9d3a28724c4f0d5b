// SPDX-License-Identifier: MIT
// Division by a run-time constant as a multiplication and a shift.
#ifndef GIWA_NUMERIC_FAST_DIVISION_HPP
#define GIWA_NUMERIC_FAST_DIVISION_HPP

#include <giwa/base/assert.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI {

/// A divisor d in [1, 2^63) that divides any n in [0, 2^63). Construct it on the host, which takes a loop of 63 steps,
/// and pass it to a kernel by value. Source: Granlund and Montgomery, "Division by invariant integers using
/// multiplication" (1994), theorem 4.2 with N = 63: s = ceil(log2 d), m = ceil(2^(63 + s) / d) fits in 64 bits, n / d =
/// floor(n m / 2^(63 + s)).
class fast_divisor {
 public:
  constexpr fast_divisor() = default;

  /// Computes the multiplier and the shift for d >= 1, in some hundred operations.
  GIWA_HOST_DEVICE constexpr explicit fast_divisor(int64 d) : divisor_(static_cast<uint64>(d)) {
    GIWA_ASSERT(d >= 1, "a divisor must be at least 1");
    while ((uint64{1} << shift_) < divisor_) ++shift_;
    if (divisor_ == uint64{1} << shift_) return;  // a power of two: the multiplier is 2^63
    // Long division of 2^(63 + s) by d. The first s quotient bits are zero or reach only 2^s / d <= 1.
    uint64 remainder = uint64{1} << shift_;
    uint64 quotient = remainder / divisor_;
    remainder -= quotient * divisor_;
    for (int bit = 0; bit < 63; ++bit) {
      remainder <<= 1;  // below 2 d < 2^64
      quotient = (quotient << 1) | (remainder >= divisor_ ? 1u : 0u);
      if (remainder >= divisor_) remainder -= divisor_;
    }
    multiplier_ = quotient + (remainder != 0 ? 1 : 0);
  }

  /// Returns d.
  GIWA_HOST_DEVICE constexpr int64 divisor() const { return static_cast<int64>(divisor_); }

  /// Returns n / d for n >= 0.
  GIWA_HOST_DEVICE friend constexpr int64 operator/(int64 n, const fast_divisor& d) {
    return static_cast<int64>(multiply_high(static_cast<uint64>(n) << 1, d.multiplier_) >> d.shift_);
  }

 private:
  uint64 divisor_ = 1;
  uint64 multiplier_ = uint64{1} << 63;
  int shift_ = 0;
};

}  // namespace giwa::inline GIWA_ABI

#endif
