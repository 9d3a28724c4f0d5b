// EXPECT: giwa: wgmma needs a multiple of 16 columns
// SPDX-License-Identifier: MIT
// The widths of wgmma are multiples of 16.
#include <giwa/arch/wgmma.cuh>

#if defined(GIWA_COMPILE_FAIL)
constexpr int columns = 24;
#else
constexpr int columns = 32;
#endif
constexpr auto size = sizeof(giwa::arch::wgmma<columns>);
