// EXPECT: giwa::elementwise: the first array is the output: its elements must not be const.
// SPDX-License-Identifier: MIT
// The first array of an elementwise call is its output.
#include <giwa/grid/elementwise.hpp>

#include <vector>

#if defined(GIWA_COMPILE_FAIL)
using output = const std::vector<float>;
#else
using output = std::vector<float>;
#endif
giwa::status check(output& c, const std::vector<float>& a) { return giwa::elementwise{c, a}.state(); }
