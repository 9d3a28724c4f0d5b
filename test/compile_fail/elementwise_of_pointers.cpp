// EXPECT: giwa::elementwise: a pointer has no size: pass tensor_view<float, 1>{pointer, {n}}.
// SPDX-License-Identifier: MIT
// A pointer does not say how many elements it has, also beside a view that does.
#include <giwa/grid/elementwise.hpp>

#if defined(GIWA_COMPILE_FAIL)
giwa::status check(float* c, const float* a) {
  return giwa::elementwise{c, giwa::tensor_view<const float, 1>{a, {8}}}.state();
}
#else
giwa::status check(float* c, const float* a) {
  return giwa::elementwise{giwa::tensor_view<float, 1>{c, {8}}, giwa::tensor_view<const float, 1>{a, {8}}}.state();
}
#endif
