// EXPECT: giwa::philox::uniform returns float or double
// SPDX-License-Identifier: MIT
// Uniform numbers in [0, 1) are floating-point numbers.
#include <giwa/numeric/philox.hpp>

#if defined(GIWA_COMPILE_FAIL)
using number = int;
#else
using number = float;
#endif
const number x = giwa::philox{1}.uniform<number>(0);
