// EXPECT: giwa::attention_cached: dropout is for training
// SPDX-License-Identifier: MIT
// Decoding drops no weights.
#include <giwa/host.hpp>

giwa::status attend(const giwa::kv_cache<giwa::fp16>& cache, const giwa::tensor_view<giwa::fp16, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_cached<64>(giwa::host, cache, x, x, giwa::full{}, giwa::dropout(0.1f, 7));
#else
  return giwa::attention_cached<64>(giwa::host, cache, x, x, giwa::full{}, giwa::dropout(0.1f, 7).score);
#endif
}
