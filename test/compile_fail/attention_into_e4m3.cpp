// EXPECT: giwa::attention_forward: elements of o must be giwa::fp16, bf16 or fp32
// SPDX-License-Identifier: MIT
// q, k and v may be e4m3, o not.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<giwa::e4m3, 4>& x, const giwa::tensor_view<giwa::fp16, 4>& y) {
#if defined(GIWA_COMPILE_FAIL)
  static_cast<void>(y);
  return giwa::attention_forward<64>(giwa::host, x, x, x, x);
#else
  return giwa::attention_forward<64>(giwa::host, x, x, x, y);
#endif
}
