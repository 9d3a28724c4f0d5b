// EXPECT: giwa::append_to_cache: the cache is written, so its elements must not be const
// SPDX-License-Identifier: MIT
// A cache that rows are appended to is written.
#include <giwa/host.hpp>

giwa::status append(const giwa::kv_cache<float>& cache, const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::append_to_cache(giwa::host, giwa::kv_cache<const float>(cache), x, x);
#else
  return giwa::append_to_cache(giwa::host, cache, x, x);
#endif
}
