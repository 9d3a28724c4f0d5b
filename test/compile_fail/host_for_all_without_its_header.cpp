// EXPECT: giwa::for_all(giwa::host, ...) needs #include <giwa/host.hpp>.
// SPDX-License-Identifier: MIT
// for_all on the host needs the header with its loop, and the message says which that is.
#include <giwa/grid/host_for_all.hpp>

struct body {
  void operator()(giwa::int64) const {}
};

#if defined(GIWA_COMPILE_FAIL)
giwa::status run() { return giwa::for_all(giwa::host, 10, body{}); }
#endif
