// EXPECT: giwa: the options come after the mask and the score modifier
// SPDX-License-Identifier: MIT
// The options are the last argument.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, giwa::full{}, giwa::attention_options{});
#else
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, giwa::full{}, giwa::plain_score{},
                                     giwa::attention_options{});
#endif
}
