// EXPECT: giwa::copy: source and target must have one element type
// SPDX-License-Identifier: MIT
// A copy moves bytes; what converts is a for_all.
#include <giwa/device/copy.hpp>

#if defined(GIWA_COMPILE_FAIL)
using element = double;
#else
using element = float;
#endif
giwa::status run(giwa::tensor_view<const float, 1> from, giwa::tensor_view<element, 1> to) {
  return giwa::copy(giwa::host, from, to);
}
