// EXPECT: giwa::attention_backward: dq, dk and dv must have one element type
// SPDX-License-Identifier: MIT
// An empty view says that a gradient is not computed, and has the type of the others.
#include <giwa/host.hpp>

giwa::status gradients(const giwa::tensor_view<giwa::fp16, 4>& x, const giwa::tensor_view<float, 3>& lse,
                       const giwa::tensor_view<float, 4>& g) {
#if defined(GIWA_COMPILE_FAIL)
  const giwa::tensor_view<giwa::fp16, 4> none;
#else
  const giwa::tensor_view<float, 4> none;
#endif
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, x, none, g, g, {.lse = lse});
}
