// EXPECT: giwa::choose_head_size<64, 128>(...) chooses one that is known at run time
// SPDX-License-Identifier: MIT
// A call has one pair of head sizes.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<giwa::head_sizes<32, 64, 128>>(giwa::host, x, x, x, x);
#else
  return giwa::choose_head_size<32, 64, 128>(
      x.extent(3), [&](auto head_size) { return giwa::attention_forward<head_size>(giwa::host, x, x, x, x); });
#endif
}
