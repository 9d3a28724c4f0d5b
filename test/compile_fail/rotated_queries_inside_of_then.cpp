// EXPECT: giwa: rotated_queries comes last
// SPDX-License-Identifier: MIT
// A rotation inside of another score modifier would not be found.
#include <giwa/host.hpp>

giwa::status attend(const giwa::kv_cache<giwa::fp16>& cache, const giwa::tensor_view<giwa::fp16, 4>& x) {
  const giwa::rotary_base rotary(10000.0, {.size = 64});
#if defined(GIWA_COMPILE_FAIL)
  const giwa::then score(giwa::rotated_queries(rotary), giwa::softcap(30));
#else
  const giwa::rotated_queries score(rotary, giwa::softcap(30));
#endif
  return giwa::attention_cached<64>(giwa::host, cache, x, x, giwa::full{}, score);
}
