// SPDX-License-Identifier: MIT
// Counter-based random numbers: element i of a sequence is a function of (seed, stream, i) only.
#ifndef GIWA_NUMERIC_PHILOX_HPP
#define GIWA_NUMERIC_PHILOX_HPP

#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI {

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
  GIWA_HOST_DEVICE constexpr random_words operator()(uint64 i) const {
    uint32 c0 = low(i), c1 = high(i), c2 = low(stream_), c3 = high(stream_);
    uint32 k0 = low(seed_), k1 = high(seed_);
    for (int round = 0; round < 10; ++round) {
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

 private:
  GIWA_HOST_DEVICE static constexpr uint32 low(uint64 x) { return static_cast<uint32>(x); }
  GIWA_HOST_DEVICE static constexpr uint32 high(uint64 x) { return static_cast<uint32>(x >> 32); }

  uint64 seed_;
  uint64 stream_;
};

}  // namespace giwa::inline GIWA_ABI

#endif
