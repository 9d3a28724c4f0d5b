// EXPECT: giwa needs NaN and infinity in host code
// FLAGS: -ffast-math
// SPDX-License-Identifier: MIT
// Under -ffast-math a host compiler assumes that there is no NaN, and a row with one would get finite results.
#if !defined(GIWA_COMPILE_FAIL)
#undef __FAST_MATH__  // as without the flag
#undef __FINITE_MATH_ONLY__
#endif
#include <giwa/host.hpp>

giwa::status run() {
  return giwa::for_all(giwa::host, 10, [](giwa::int64) {});
}
