// EXPECT: giwa::attention_backward: this score modifier gives no slope: template its operator() on the number
// SPDX-License-Identifier: MIT
// attention_backward differentiates the score modifier.
#include <giwa/host.hpp>

giwa::status gradients(const giwa::tensor_view<float, 4>& x, const giwa::tensor_view<float, 3>& lse) {
#if defined(GIWA_COMPILE_FAIL)
  const auto score = [](float s, giwa::attention_coord) { return 2 * s; };
#else
  const auto score = [](auto s, giwa::attention_coord) { return 2 * s; };
#endif
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, x, x, x, x, giwa::full{}, score, {.lse = lse});
}
