// EXPECT: giwa::attention_cached: q and o must be views, not pointers
// SPDX-License-Identifier: MIT
// A pointer does not say how its elements are laid out.
#include <giwa/host.hpp>

giwa::status attend(const giwa::kv_cache<float>& cache, const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_cached<64>(giwa::host, cache, x.data(), x.data());
#else
  return giwa::attention_cached<64>(giwa::host, cache, x, x);
#endif
}
