// EXPECT: giwa::attention_forward: options, in braces too, come after the mask and the score modifier
// SPDX-License-Identifier: MIT
// Braces have no type: they can be options only in the place of the options.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, {.scale = 0.1f});
#else
  static_cast<void>(giwa::attention_forward<64>(giwa::host, x, x, x, x, {}));
  static_cast<void>(giwa::attention_forward<64>(giwa::host, x, x, x, x, giwa::causal{}, {}));
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, {}, {}, {.scale = 0.1f});
#endif
}
