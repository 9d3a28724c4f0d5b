// EXPECT: giwa::quantize: elements of codes must be giwa::e4m3, int8_code or int4_pair
// SPDX-License-Identifier: MIT
// Codes have 8 bits.
#include <giwa/host.hpp>

#if defined(GIWA_COMPILE_FAIL)
using element = giwa::fp16;
#else
using element = giwa::e4m3;
#endif

giwa::status round(const giwa::tensor_view<const float, 4>& x, const giwa::tensor_view<element, 4>& codes,
                   const giwa::tensor_view<float, 3>& scales) {
  return giwa::quantize(giwa::host, x, codes, scales);
}
