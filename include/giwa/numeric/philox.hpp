// SPDX-License-Identifier: MIT
// Counter-based random numbers: element i of a sequence is a function of (seed, stream, i) only.
#ifndef GIWA_NUMERIC_PHILOX_HPP
#define GIWA_NUMERIC_PHILOX_HPP

#include <giwa/numeric/integer.hpp>
#include <giwa/numeric/trigonometry.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The square root, rounded to nearest on host and device.
GIWA_HOST_DEVICE inline float square_root(float x) {
#if defined(__CUDA_ARCH__)
  return ::__fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

/// -ln((word + 1) / 2^32), >= 0, with a relative error of 2^-23: u = m 2^e with m near 1, and ln m = f + f^2 q(f) with
/// f = m - 1 and a minimax polynomial q (error 2^-27.9 of ln m). Near u = 1 f comes from the integer, which has all its
/// digits.
GIWA_HOST_DEVICE inline float minus_log_of_uniform(uint32 word) {
  constexpr uint32 above_half = 0xb504f334u;  // 2^32 / sqrt(2)
  float f = static_cast<float>(~word) * -0x1p-32f, e = 0;
  if (word < above_half) {
    const uint32 bits = __builtin_bit_cast(uint32, static_cast<float>(word + 1)), exponent = (bits - 0x3f3504f3u) >> 23;
    f = __builtin_bit_cast(float, bits - (exponent << 23)) - 1.0f;
    e = static_cast<float>(exponent) - 32.0f;
  }
  float q = -0x1.38303ep-4f;
  q = fma_with_subnormals(q, f, 0x1.08487cp-3f);
  q = fma_with_subnormals(q, f, -0x1.0f376cp-3f);
  q = fma_with_subnormals(q, f, 0x1.227198p-3f);
  q = fma_with_subnormals(q, f, -0x1.54276cp-3f);
  q = fma_with_subnormals(q, f, 0x1.99a3f4p-3f);
  q = fma_with_subnormals(q, f, -0x1.000426p-2f);
  q = fma_with_subnormals(q, f, 0x1.55555p-2f);
  q = fma_with_subnormals(q, f, -0x1.fffff8p-2f);
  const float log_m = fma_with_subnormals(f * f, q, f);
  // ln 2 is the sum of two floats; e times the first is exact.
  return fma_with_subnormals(-e, 0x1.62e4p-1f, fma_with_subnormals(-e, 0x1.7f7d1cp-20f, -log_m));
}

/// cos(2 pi word / 2^32), with a relative error of 2 units in the last place: the quarter turns are split off as integers.
GIWA_HOST_DEVICE inline float cosine_of_turn(uint32 word) {
  const uint32 quarters = (word + 0x20000000u) >> 30;
  const int rest = static_cast<int>(word - (quarters << 30));  // [-2^29, 2^29): an eighth of a turn to both sides
  return sine_of_reduced(static_cast<float>(rest) * 0x1.921fb6p-30f, quarters + 1);
}

}  // namespace detail

/// Four words of 32 random bits.
struct random_words {
  uint32 word[4];  ///< independent words
  /// Returns whether all bits are equal.
  GIWA_HOST_DEVICE friend constexpr bool operator==(const random_words& a, const random_words& b) {
    return a.word[0] == b.word[0] && a.word[1] == b.word[1] && a.word[2] == b.word[2] && a.word[3] == b.word[3];
  }
};

/// A generator of random numbers without state: `philox random{seed, stream}; float u = random.uniform<float>(i);`.
/// Gives the same bits for the same i on host and device, whatever the launch. Different streams of one seed are
/// independent. The name stream is that of random number generation and has nothing to do with CUDA streams. Source:
/// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x32-10; the key is the seed, the
/// counter is (i, stream).
class philox {
 public:
  /// Takes any seed and any stream number.
  GIWA_HOST_DEVICE constexpr explicit philox(uint64 seed, uint64 stream = 0) : seed_(seed), stream_(stream) {}

  /// Returns 128 random bits for element i.
  GIWA_HOST_DEVICE constexpr random_words operator()(uint64 i) const { return rounds<10>(i); }

  /// Returns other bits for element i, by Philox4x32 with so many rounds: 7 pass all of the tests of TestU01's BigCrush
  /// in two thirds of the time (Salmon et al., table 2).
  template <int Rounds>
  GIWA_HOST_DEVICE constexpr random_words rounds(uint64 i) const {
    static_assert(Rounds >= 7 && Rounds <= 10, "giwa::philox::rounds: fewer than 7 rounds are not random enough.");
    uint32 c0 = low(i), c1 = high(i), c2 = low(stream_), c3 = high(stream_);
    uint32 k0 = low(seed_), k1 = high(seed_);
    GIWA_UNROLL
    for (int round = 0; round < Rounds; ++round) {
      const uint32 high0 = multiply_high(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
      const uint32 high1 = multiply_high(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
      c0 = high1 ^ c1 ^ k0;
      c1 = low1;
      c2 = high0 ^ c3 ^ k1;
      c3 = low0;
      k0 += 0x9e3779b9u;  // the golden ratio, and sqrt(3) - 1
      k1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
  }

  /// Returns a number in [0, 1) for element i: a multiple of 2^-24 for float, of 2^-53 for double, all equally likely.
  template <class T>
  GIWA_HOST_DEVICE constexpr T uniform(uint64 i) const {
    static_assert(stdlib::same_as<T, float> || stdlib::same_as<T, double>,
                  "giwa::philox::uniform returns float or double; convert the float to a narrower type.");
    const random_words r = (*this)(i);
    if constexpr (stdlib::same_as<T, float>)
      return static_cast<float>(r.word[0] >> 8) * 0x1p-24f;
    else
      return static_cast<double>(((static_cast<uint64>(r.word[1]) << 32) | r.word[0]) >> 11) * 0x1p-53;
  }

  /// Returns a number of the normal distribution of mean 0 and variance 1 for element i, between -6.67 and 6.67:
  /// sqrt(-2 ln u) cos(2 pi v) with u in (0, 1] and v in [0, 1) of 32 bits each, to 4 units in the last place. It has the
  /// same bits on host and device, whatever the fast-math flags of nvcc, and uses the words that uniform() uses. Source:
  /// Box and Muller, "A note on the generation of random normal deviates" (1958).
  template <class T>
  GIWA_HOST_DEVICE T normal(uint64 i) const {
    static_assert(stdlib::same_as<T, float>, "giwa::philox::normal returns float; convert it to other types.");
    const random_words r = (*this)(i);
    return detail::square_root(2.0f * detail::minus_log_of_uniform(r.word[0])) * detail::cosine_of_turn(r.word[1]);
  }

 private:
  GIWA_HOST_DEVICE static constexpr uint32 low(uint64 x) { return static_cast<uint32>(x); }
  GIWA_HOST_DEVICE static constexpr uint32 high(uint64 x) { return static_cast<uint32>(x >> 32); }

  uint64 seed_;
  uint64 stream_;
};

}  // namespace giwa::inline GIWA_ABI

#endif
