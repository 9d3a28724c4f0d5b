// EXPECT: giwa: dropout comes last
// SPDX-License-Identifier: MIT
// A dropout inside of another score modifier would not be found.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<giwa::fp16, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  const giwa::then score(giwa::dropout(0.1f, 7), giwa::softcap(30));
#else
  const giwa::dropout score(0.1f, 7, giwa::softcap(30));
#endif
  return giwa::attention_forward<64>(giwa::host, x, x, x, x, giwa::full{}, score);
}
