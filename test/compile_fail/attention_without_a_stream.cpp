// EXPECT: giwa::attention_forward: pass a stream or giwa::host as the first argument
// SPDX-License-Identifier: MIT
// A call says where it runs.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(x, x, x, x);
#else
  return giwa::attention_forward<64>(giwa::host, x, x, x, x);
#endif
}
