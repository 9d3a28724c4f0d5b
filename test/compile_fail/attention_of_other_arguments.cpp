// EXPECT: giwa::attention_forward: the arguments are (stream, q, k, v, o, mask, score, options)
// SPDX-License-Identifier: MIT
// Too few tensors: the output is missing.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(giwa::host, x, x, x);
#else
  return giwa::attention_forward<64>(giwa::host, x, x, x, x);
#endif
}
