// EXPECT: make its call operator const (no mutable lambda).
// SPDX-License-Identifier: MIT
// Each thread has its own copy of the body, so one that counts what it has seen would count wrong.
#include <giwa/host.hpp>

giwa::status run() {
  int count = 0;
#if defined(GIWA_COMPILE_FAIL)
  return giwa::for_all(giwa::host, 10, [=](giwa::int64) mutable { ++count; });
#else
  return giwa::for_all(giwa::host, 10, [=](giwa::int64) { static_cast<void>(count); });
#endif
}
