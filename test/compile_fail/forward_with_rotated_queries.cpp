// EXPECT: giwa: only attention_cached takes rotated_queries
// SPDX-License-Identifier: MIT
// Gradients need rotated queries and keys again: they are rotated before the call.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<giwa::fp16, 4>& x) {
  const giwa::rotated_queries score(giwa::rotary_base(10000.0, {.size = 64}), giwa::softcap(30));
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, giwa::full{}, score);
#else
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, giwa::full{}, score.score);
#endif
}
