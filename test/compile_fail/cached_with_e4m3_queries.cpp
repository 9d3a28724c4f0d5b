// EXPECT: giwa::attention_cached: elements of q must be giwa::fp16, bf16 or fp32
// SPDX-License-Identifier: MIT
// A cache may be e4m3, q not.
#include <giwa/host.hpp>

#if defined(GIWA_COMPILE_FAIL)
using element = giwa::e4m3;
#else
using element = giwa::fp16;
#endif

giwa::status attend(const giwa::kv_cache<giwa::e4m3>& cache, const giwa::tensor_view<element, 4>& q,
                    const giwa::tensor_view<giwa::fp16, 4>& o) {
  return giwa::attention_cached<64>(giwa::host, cache, q, o);
}
