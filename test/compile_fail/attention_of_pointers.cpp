// EXPECT: giwa::attention_forward: q, k, v and o must be views, not pointers
// SPDX-License-Identifier: MIT
// A pointer does not say how its elements are laid out.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(giwa::host, x.data(), x.data(), x.data(), x.data(), 1, 128, 8);
#else
  return giwa::attention_forward<64>(giwa::host, x, x, x, x);
#endif
}
