// EXPECT: giwa::attention_forward: options, in braces too, come after the mask and the score modifier
// SPDX-License-Identifier: MIT
// The options are the last argument, also of packed sequences and with head sizes known at run time.
#include <giwa/host.hpp>

giwa::status attend(const giwa::sequences& packed, const giwa::tensor_view<float, 3>& x) {
  using sizes = giwa::head_sizes<32, 64>;
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<sizes>(giwa::host, packed, x, x, x, x, giwa::causal{}, {.scale = 0.1f});
#else
  return giwa::attention_forward<sizes>(giwa::host, packed, x, x, x, x, giwa::causal{}, {}, {.scale = 0.1f});
#endif
}
