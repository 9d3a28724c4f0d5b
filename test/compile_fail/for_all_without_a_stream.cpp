// EXPECT: giwa::for_all: pass a stream or giwa::host as the first argument
// SPDX-License-Identifier: MIT
// A call says where it runs.
#include <giwa/host.hpp>

struct body {
  void operator()(giwa::int64) const {}
};
#if defined(GIWA_COMPILE_FAIL)
giwa::status run() { return giwa::for_all(10, body{}); }
#else
giwa::status run() { return giwa::for_all(giwa::host, 10, body{}); }
#endif
