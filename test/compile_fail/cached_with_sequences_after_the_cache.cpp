// EXPECT: giwa::attention_cached: giwa::sequences is a member of the options
// SPDX-License-Identifier: MIT
// The rows of packed queries are an option.
#include <giwa/host.hpp>

giwa::status attend(const giwa::kv_cache<float>& cache, const giwa::sequences& packed,
                    const giwa::tensor_view<float, 3>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_cached<64>(giwa::host, cache, packed, x, x, {}, {}, {.scale = 0.1f});
#else
  return giwa::attention_cached<64>(giwa::host, cache, x, x, {.sequences = packed});
#endif
}
