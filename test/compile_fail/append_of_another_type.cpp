// EXPECT: giwa::append_to_cache: elements of the cache must be those of k_new, giwa::e4m3, int8_code, int4_pair, q8_0, q4_0 or rows_656
// SPDX-License-Identifier: MIT
// A cache holds the elements of the new rows, or 8-bit ones.
#include <giwa/host.hpp>

#if defined(GIWA_COMPILE_FAIL)
using element = giwa::fp16;
#else
using element = giwa::e4m3;
#endif

giwa::status append(const giwa::kv_cache<element>& cache, const giwa::tensor_view<const float, 4>& x) {
  return giwa::append_to_cache(giwa::host, cache, x, x, giwa::rotary_base(10000, {.size = 64}));
}
