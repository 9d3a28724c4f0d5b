// EXPECT: giwa::attention_backward: elements must be giwa::fp16, bf16 or fp32
// SPDX-License-Identifier: MIT
// There are no gradients of e4m3.
#include <giwa/host.hpp>

#if defined(GIWA_COMPILE_FAIL)
using element = giwa::e4m3;
#else
using element = giwa::fp16;
#endif

giwa::status gradients(const giwa::tensor_view<element, 4>& q, const giwa::tensor_view<giwa::fp16, 4>& x,
                       const giwa::tensor_view<float, 3>& lse) {
  return giwa::attention_backward<64>(giwa::host, q, q, q, x, x, x, x, x, {.lse = lse});
}
