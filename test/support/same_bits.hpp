// SPDX-License-Identifier: MIT
// Whether two arrays are the same to the last bit, NaN and the sign of zero included.
#ifndef GIWA_TEST_SUPPORT_SAME_BITS_HPP
#define GIWA_TEST_SUPPORT_SAME_BITS_HPP

#include <cstring>
#include <vector>

namespace giwa_test {

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace giwa_test

#endif
