// EXPECT: giwa::attention_backward: options come after the mask and the score modifier
// SPDX-License-Identifier: MIT
// The options are the last argument.
#include <giwa/host.hpp>

giwa::status gradients(const giwa::tensor_view<float, 4>& x, const giwa::tensor_view<float, 3>& lse) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, lse, x, x, x, x, giwa::causal{}, {.scale = 0.1f});
#else
  static_cast<void>(giwa::attention_backward<64>(giwa::host, x, x, x, x, lse, x, x, x, x, {}));
  using sizes = giwa::head_sizes<32, 64>;
  static_cast<void>(giwa::attention_backward<sizes>(giwa::host, x, x, x, x, lse, x, x, x, x));
  static_cast<void>(giwa::attention_backward<sizes>(giwa::host, x, x, x, x, lse, x, x, x, x, {}, {}, {.scale = 0.1f}));
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, lse, x, x, x, x, giwa::causal{}, {}, {.scale = 0.1f});
#endif
}
