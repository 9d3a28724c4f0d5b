// EXPECT: could not convert
// SPDX-License-Identifier: MIT
// A view of const elements does not become one of mutable elements.
#include <giwa/numeric/tensor_view.hpp>

#if defined(GIWA_COMPILE_FAIL)
using source = giwa::tensor_view<const float, 1>;
#else
using source = giwa::tensor_view<float, 1>;
#endif
giwa::tensor_view<float, 1> convert(source view) { return view; }
