// EXPECT: giwa::attention_cached: elements of the cache must be those of q, giwa::e4m3, int8_code, int4_pair, q8_0, q4_0 or rows_656
// SPDX-License-Identifier: MIT
// A cache has the precision of the queries, or 8 bits.
#include <giwa/host.hpp>

giwa::status attend(const giwa::kv_cache<giwa::bf16>& cache, const giwa::tensor_view<giwa::fp16, 4>& x,
                    const giwa::tensor_view<giwa::bf16, 4>& y) {
#if defined(GIWA_COMPILE_FAIL)
  static_cast<void>(y);
  return giwa::attention_cached<64>(giwa::host, cache, x, x);
#else
  return giwa::attention_cached<64>(giwa::host, cache, y, x);
#endif
}
