// EXPECT: giwa::attention_forward: the head size is a template argument
// SPDX-License-Identifier: MIT
// A kernel is compiled for a head size.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward(giwa::host, x, x, x, x);
#else
  return giwa::attention_forward<64>(giwa::host, x, x, x, x);
#endif
}
