// EXPECT: giwa::attention_backward: lse is a member of the options
// SPDX-License-Identifier: MIT
// What the forward call wrote for the softmax is an option.
#include <giwa/host.hpp>

giwa::status gradients(const giwa::tensor_view<float, 4>& x, const giwa::tensor_view<float, 3>& lse) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, lse, x, x, x, x, giwa::causal{}, {}, {.scale = 0.1f});
#else
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, x, x, x, x, giwa::causal{}, {.lse = lse});
#endif
}
