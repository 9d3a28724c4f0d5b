// EXPECT: giwa::softmax: the arguments are (stream, in, out), or (giwa::host, in, out), where out may be in
// SPDX-License-Identifier: MIT
// The output is named also where it is the input.
#include <giwa/host.hpp>

giwa::status normalize(const giwa::tensor_view<float, 2>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::softmax(giwa::host, x);
#else
  return giwa::softmax(giwa::host, x, x);
#endif
}
