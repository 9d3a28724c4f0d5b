// EXPECT: giwa::attention_forward: the arguments are (stream, q, k, v, o, mask, score, options)
// SPDX-License-Identifier: MIT
// Options in braces do not hide another error.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x, const giwa::tensor_view<float, 3>& y) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(giwa::host, x, y, y, x, {.scale = 0.1f});
#else
  static_cast<void>(y);
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, {.scale = 0.1f});
#endif
}
