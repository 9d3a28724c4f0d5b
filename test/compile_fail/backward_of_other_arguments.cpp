// EXPECT: giwa::attention_backward: the arguments are (stream, q, k, v, o, dout, dq, dk, dv, mask, score, options)
// SPDX-License-Identifier: MIT
// A wrong call is explained in one sentence.
#include <giwa/host.hpp>

giwa::status gradients(const giwa::tensor_view<float, 4>& x, [[maybe_unused]] const giwa::tensor_view<float, 3>& lse) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, x, x, x);
#else
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, x, x, x, x, {.lse = lse});
#endif
}
