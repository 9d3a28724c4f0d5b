// SPDX-License-Identifier: MIT
// Random inputs for benchmarks: a function for for_all that fills an array, the same on every run.
#pragma once

#include <giwa/giwa.cuh>

namespace bench {

/// out[i] uniform in [0, 1).
template <class T>
struct fill_uniform {
  T* out;
  giwa::philox random;
  GIWA_HOST_DEVICE void operator()(giwa::int64 i) const {
    out[i] = static_cast<T>(random.uniform<float>(static_cast<giwa::uint64>(i)));
  }
};

/// out[i] normally distributed, by Box and Muller.
template <class T>
struct fill_normal {
  T* out;
  giwa::philox random;
  float deviation = 1;
  GIWA_HOST_DEVICE void operator()(giwa::int64 i) const {
    const auto at = 2 * static_cast<giwa::uint64>(i);
    const float u = 1 - random.uniform<float>(at), v = random.uniform<float>(at + 1);
    out[i] = giwa::convert<T>{}(deviation * ::sqrtf(-2 * ::logf(u)) * ::cospif(2 * v));
  }
};

}  // namespace bench
