// EXPECT: giwa::tensor_view must have at least one dimension
// SPDX-License-Identifier: MIT
// A view has a rank of at least 1.
#include <giwa/numeric/tensor_view.hpp>

#if defined(GIWA_COMPILE_FAIL)
constexpr int rank = 0;
#else
constexpr int rank = 1;
#endif
const giwa::tensor_view<float, rank> view;
