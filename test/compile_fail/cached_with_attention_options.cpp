// EXPECT: giwa::attention_cached: the options are giwa::cached_options, not giwa::attention_options
// SPDX-License-Identifier: MIT
// Each call has its own options.
#include <giwa/host.hpp>

#if defined(GIWA_COMPILE_FAIL)
using options = giwa::attention_options;
#else
using options = giwa::cached_options;
#endif
giwa::status attend(const giwa::kv_cache<float>& cache, const giwa::tensor_view<float, 4>& x) {
  return giwa::attention_cached<64>(giwa::host, cache, x, x, giwa::full{}, giwa::plain_score{}, options{});
}
