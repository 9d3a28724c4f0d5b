// EXPECT: a mask is called with (giwa::attention_coord) and returns bool
// SPDX-License-Identifier: MIT
// The size of a workspace is asked with the options of its call.
#include <giwa/host.hpp>

#if defined(GIWA_COMPILE_FAIL)
using options = giwa::attention_options;
#else
using options = giwa::attention_backward_options;
#endif
giwa::int64 bytes(const giwa::tensor_view<float, 4>& x) {
  return giwa::workspace_bytes(x, x, x, x, x, x, x, x, options{.scale = 1});
}
