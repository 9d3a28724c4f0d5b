// SPDX-License-Identifier: MIT
// Sine and cosine of moderate fp32 arguments without a branch, for code that a kernel inlines often, such as score modifiers.
#ifndef GIWA_NUMERIC_TRIGONOMETRY_HPP
#define GIWA_NUMERIC_TRIGONOMETRY_HPP

#include <giwa/numeric/multiply_add.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// sin(x + quarter_turns * pi / 2). With n = round(2 x / pi), r = x - n pi / 2 lies in [-pi/4, pi/4]; minimax
/// polynomials in r^2 give sin r and cos r (errors 2^-27.9 and 2^-32.9 before rounding), and n chooses among them and
/// their signs. pi / 2 is the sum of three floats, so that r is exact to its last bits (Cody and Waite 1980).
GIWA_HOST_DEVICE inline float sine_of_reduced(float x, unsigned quarter_turns) {
  constexpr float two_over_pi = 0x1.45f306p-1f,
                  round_to_integer = 0x1.8p23f;  // adding 1.5 * 2^23 leaves the nearest integer
  const float shifted = fma_with_subnormals(x, two_over_pi, round_to_integer);
  const float minus_n = round_to_integer - shifted;
  const unsigned n =
      __builtin_bit_cast(unsigned, shifted) + quarter_turns;  // its last two bits are those of the integer

  float r = fma_with_subnormals(minus_n, 0x1.921fb6p+0f, x);
  r = fma_with_subnormals(minus_n, -0x1.777a5cp-25f, r);
  r = fma_with_subnormals(minus_n, -0x1.ee59dap-50f, r);
  const float z = r * r;

  float sine = fma_with_subnormals(z, -0x1.9935e0p-13f, 0x1.110712p-7f);
  sine = fma_with_subnormals(z, sine, -0x1.555544p-3f);
  sine = fma_with_subnormals(sine * z, r, r);  // r + r^3 (s0 + s1 z + s2 z^2)
  float cosine = fma_with_subnormals(z, 0x1.99decep-16f, -0x1.6c0c08p-10f);
  cosine = fma_with_subnormals(z, cosine, 0x1.55554ap-5f);
  cosine = fma_with_subnormals(z, cosine, -0.5f);
  cosine = fma_with_subnormals(z, cosine, 1.0f);  // 1 - z / 2 + z^2 (c0 + c1 z + c2 z^2)

  const float value = (n & 1) != 0 ? cosine : sine;
  return (n & 2) != 0 ? -value : value;
}

/// sin |x| with the sign of x: the reduction would make +0 of -0.
GIWA_HOST_DEVICE inline float sine_with_sign(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x), sign = bits & 0x80000000u;
  const float sine = sine_of_reduced(__builtin_bit_cast(float, bits ^ sign), 0);
  return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, sine) ^ sign);
}

}  // namespace detail

/// Computes sin x for |x| <= 1e5, x in radians, to 1.6 units in the last place. Beyond 1e5 the error grows, and from
/// about 1e6 on the result is meaningless; infinity and NaN give NaN.
///
/// The same bits on host and device, whatever the fast-math flags of nvcc. The body is about 20 instructions without a
/// branch. sinf of the CUDA library holds a slow path for large arguments too, which every inlined copy repeats. On the
/// host the compiler needs -march=native, or another flag for FMA instructions, to inline and to vectorise it. A
/// template, so that a program with `using namespace giwa` keeps its own sin(float). Source: W. J. Cody and W. Waite,
/// "Software Manual for the Elementary Functions" (1980), chapter 8; own polynomials.
template <stdlib::same_as<float> T>
GIWA_HOST_DEVICE T sin(T x) {
  return detail::sine_with_sign(x);
}

/// Computes cos x for |x| <= 1e5, x in radians: as sin().
template <stdlib::same_as<float> T>
GIWA_HOST_DEVICE T cos(T x) {
  return detail::sine_of_reduced(x, 1);
}

}  // namespace giwa::inline GIWA_ABI

#endif
