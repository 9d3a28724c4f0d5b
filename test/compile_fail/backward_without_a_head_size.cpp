// EXPECT: giwa::attention_backward: the head size is a template argument
// SPDX-License-Identifier: MIT
// A kernel is compiled for a head size; nvcc 12.4 and 12.5 drop that of a call without giwa::, which must not compile then.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x, const giwa::tensor_view<float, 3>& lse) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_backward(giwa::host, x, x, x, x, x, x, x, x, giwa::full{}, {.lse = lse});
#else
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, x, x, x, x, giwa::full{}, {.lse = lse});
#endif
}
