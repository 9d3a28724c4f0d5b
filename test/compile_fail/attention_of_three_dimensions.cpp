// EXPECT: giwa::attention_forward: views of rank 3 are packed sequences: pass giwa::sequences
// SPDX-License-Identifier: MIT
// Views of rank 3 need the offsets of their sequences.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 3>& x, const int* n) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, giwa::causal{});
#else
  return giwa::attention_forward<64>(giwa::host, giwa::sequences{n, n, 1, 8}, x, x, x, x);
#endif
}
