// EXPECT: giwa::attention_cached: keys and values are a giwa::kv_cache
// SPDX-License-Identifier: MIT
// Keys and values come with their lengths.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_cached<64>(giwa::host, x, x, x, x);
#else
  return giwa::attention_cached<64>(giwa::host, giwa::kv_cache<float>{.k = x, .v = x}, x, x);
#endif
}
