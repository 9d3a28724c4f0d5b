// SPDX-License-Identifier: MIT
// Inputs for the tests: random integers of every magnitude, and the edges of the integer types.
#ifndef GIWA_TEST_SUPPORT_RANDOM_HPP
#define GIWA_TEST_SUPPORT_RANDOM_HPP

#include <giwa/numeric/philox.hpp>

#include <vector>

namespace giwa_test {

using giwa::int64;
using giwa::uint64;

/// A sequence of random numbers; the same in every run.
class random_sequence {
 public:
  explicit random_sequence(uint64 seed) : source_(seed) {}

  /// 64 random bits.
  uint64 bits() {
    const giwa::random_words r = source_(next_++);
    return (static_cast<uint64>(r.word[1]) << 32) | r.word[0];
  }
  /// In [0, end), end > 0.
  int64 below(int64 end) { return static_cast<int64>(bits() % static_cast<uint64>(end)); }
  /// In [0, 2^63), small numbers as often as large ones.
  int64 any_magnitude() {
    const auto shift = 1 + bits() % 63;
    return static_cast<int64>(bits() >> shift);
  }

 private:
  giwa::philox source_;
  uint64 next_ = 0;
};

/// 0, 1, 2, 3 and 2^k - 1, 2^k, 2^k + 1 up to 2^63 - 1, in order, some of them twice.
inline std::vector<int64> edges() {
  std::vector<int64> values{0};
  for (int k = 0; k < 63; ++k) {
    const int64 power = int64{1} << k;
    values.insert(values.end(), {power - 1, power, power + 1});
  }
  values.insert(values.end(), {giwa::max_int64 - 1, giwa::max_int64});
  return values;
}

}  // namespace giwa_test

#endif
