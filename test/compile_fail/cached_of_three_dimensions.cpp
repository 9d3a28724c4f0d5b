// EXPECT: giwa::attention_cached: views of rank 3 are packed queries
// SPDX-License-Identifier: MIT
// Packed queries need offsets.
#include <giwa/host.hpp>

giwa::status attend(const giwa::kv_cache<float>& cache, const giwa::queries& packed,
                    const giwa::tensor_view<float, 3>& x) {
#if defined(GIWA_COMPILE_FAIL)
  static_cast<void>(packed);
  return giwa::attention_cached<64>(giwa::host, cache, x, x);
#else
  return giwa::attention_cached<64>(giwa::host, cache, packed, x, x);
#endif
}
