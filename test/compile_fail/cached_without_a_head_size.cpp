// EXPECT: giwa::attention_cached: the head size is a template argument
// SPDX-License-Identifier: MIT
// The head size decides which kernel is compiled.
#include <giwa/host.hpp>

giwa::status attend(const giwa::kv_cache<float>& cache, const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_cached(giwa::host, cache, x, x);
#else
  return giwa::attention_cached<64>(giwa::host, cache, x, x);
#endif
}
