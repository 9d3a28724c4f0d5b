// EXPECT: cudaStream_t{} is the default stream, giwa::throw_if_failed(s) the stream of a result
// SPDX-License-Identifier: MIT
// The default stream has a type, unlike 0.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(0, x, x, x, x);
#else
  return giwa::attention_forward<64>(giwa::host, x, x, x, x);
#endif
}
