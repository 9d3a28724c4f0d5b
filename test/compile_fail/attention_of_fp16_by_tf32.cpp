// EXPECT: giwa::attention_forward: fp32_exact and tf32 say how tensors of fp32 are multiplied
// SPDX-License-Identifier: MIT
// Tensors of 16 bits are multiplied as they are.
#include <giwa/host.hpp>

#if defined(GIWA_COMPILE_FAIL)
using element = giwa::fp16;
#else
using element = float;
#endif

giwa::status attend(const giwa::tensor_view<element, 4>& x) {
  return giwa::attention_forward<64, giwa::tf32>(giwa::host, x, x, x, x);
}
