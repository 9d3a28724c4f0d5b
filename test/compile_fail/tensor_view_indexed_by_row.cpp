// EXPECT: giwa::tensor_view: write x(i, j) or x[{i, j}], with all coordinates at once, not x[i][j]
// SPDX-License-Identifier: MIT
// An index has all coordinates.
#include <giwa/numeric/tensor_view.hpp>

float element(const giwa::tensor_view<float, 2>& x) {
#if defined(GIWA_COMPILE_FAIL)
  return x[1][2];
#else
  return x[{1, 2}] + x[giwa::index{1, 2}] + x(1, 2);
#endif
}
