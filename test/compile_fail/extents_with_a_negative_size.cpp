// EXPECT: giwa::extents: a static size must be at least 0, or giwa::dynamic
// SPDX-License-Identifier: MIT
// A size in the type is not negative.
#include <giwa/numeric/extents.hpp>

#if defined(GIWA_COMPILE_FAIL)
constexpr int columns = -3;
#else
constexpr int columns = 3;
#endif
const giwa::extents<giwa::dynamic, columns> sizes{4};
