// EXPECT: giwa::for_all: pass an integer count, extents{...} or elementwise{...} before f.
// SPDX-License-Identifier: MIT
// A count is an integer.
#include <giwa/host.hpp>

struct body {
  void operator()(giwa::int64) const {}
};
#if defined(GIWA_COMPILE_FAIL)
constexpr double count = 1e6;
#else
constexpr int count = 1000000;
#endif
giwa::status run() { return giwa::for_all(giwa::host, count, body{}); }
