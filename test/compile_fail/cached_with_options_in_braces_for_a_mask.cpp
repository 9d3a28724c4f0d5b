// EXPECT: giwa::attention_cached: options, in braces too, come after the mask and the score modifier
// SPDX-License-Identifier: MIT
// The options are the last argument.
#include <giwa/host.hpp>

giwa::status attend(const giwa::kv_cache<float>& cache, const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_cached<64>(giwa::host, cache, x, x, {.scale = 0.1f});
#else
  static_cast<void>(giwa::attention_cached<64>(giwa::host, cache, x, x, {}));
  return giwa::attention_cached<64>(giwa::host, cache, x, x, {}, {}, {.scale = 0.1f});
#endif
}
