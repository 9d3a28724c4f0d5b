// EXPECT: giwa::attention_forward: giwa::sequences is a member of the options
// SPDX-License-Identifier: MIT
// The rows of sequences are an option.
#include <giwa/host.hpp>

giwa::status attend(const giwa::sequences& packed, const giwa::tensor_view<float, 3>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(giwa::host, packed, x, x, x, x, giwa::causal{}, {}, {.scale = 0.1f});
#else
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, giwa::causal{}, {.sequences = packed});
#endif
}
