// EXPECT: giwa::merge_attention: o is written, so its elements must not be const
// SPDX-License-Identifier: MIT
// The output of a merge is written.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 5>& parts, const giwa::tensor_view<float, 4>& lse,
                    const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::merge_attention(giwa::host, parts, lse, giwa::tensor_view<const float, 4>(x));
#else
  return giwa::merge_attention(giwa::host, parts, lse, x);
#endif
}
