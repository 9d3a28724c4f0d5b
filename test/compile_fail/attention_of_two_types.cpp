// EXPECT: giwa::attention_forward: q, k and v must have one element type
// SPDX-License-Identifier: MIT
// q, k and v have one precision.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x, const giwa::tensor_view<giwa::fp16, 4>& y) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(giwa::host, x, y, y, x);
#else
  static_cast<void>(y);
  return giwa::attention_forward<64>(giwa::host, x, x, x, x);
#endif
}
