// EXPECT: giwa::tensor_view: with sizes, pass a pointer: giwa::tensor_view<float, 2> x(v.data(), {rows, columns})
// SPDX-License-Identifier: MIT
// A container has one dimension; more of them begin at its pointer.
#include <giwa/numeric/tensor_view.hpp>

#include <vector>

giwa::tensor_view<float, 2> view(std::vector<float>& v) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::tensor_view<float, 2>(v, {2, 3});
#else
  return giwa::tensor_view<float, 2>(v.data(), {2, 3});
#endif
}
