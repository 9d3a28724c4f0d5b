// EXPECT: giwa: a tensor map holds fp16, bf16, fp32, fp64, e4m3 or unsigned char.
// SPDX-License-Identifier: MIT
// A tensor map holds the type of the elements, and giwa supports floating-point types.
#include <giwa/device/tensor_map.hpp>

#if defined(GIWA_COMPILE_FAIL)
using element = int;
#else
using element = float;
#endif

giwa::result<giwa::tensor_map> make(const giwa::tensor_view<element, 2>& view) {
  return giwa::make_tensor_map(view, {8, 8}, giwa::swizzle::none);
}
