// EXPECT: nodiscard
// FLAGS: -Werror=unused-result
// SPDX-License-Identifier: MIT
// A status that nobody looks at is a warning.
#include <giwa/base/status.hpp>

giwa::status call();

void caller() {
#if defined(GIWA_COMPILE_FAIL)
  call();
#else
  static_cast<void>(call());
#endif
}
