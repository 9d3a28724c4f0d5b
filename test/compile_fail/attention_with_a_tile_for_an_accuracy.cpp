// EXPECT: giwa::attention_forward: after the head size comes the accuracy, giwa::fp32, fp32_exact or tf32, and then the tile
// SPDX-License-Identifier: MIT
// The tile is the third template argument.
#include <giwa/host.hpp>

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
  using tile = giwa::tile_shape<64, 64>;
#if defined(GIWA_COMPILE_FAIL)
  return giwa::attention_forward<64, tile>(giwa::host, x, x, x, x);
#else
  return giwa::attention_forward<64, giwa::fp32, tile>(giwa::host, x, x, x, x);
#endif
}
