// EXPECT: giwa::attention_cached: the options come after the mask and the score modifier
// SPDX-License-Identifier: MIT
// The options are the last argument.
#include <giwa/host.hpp>

giwa::status attend(const giwa::kv_cache<float>& cache, const giwa::tensor_view<float, 4>& x) {
  const giwa::cached_options options;
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_cached<64>(giwa::host, cache, x, x, giwa::full{}, options);
#else
  return giwa::attention_cached<64>(giwa::host, cache, x, x, giwa::full{}, giwa::plain_score{}, options);
#endif
}
