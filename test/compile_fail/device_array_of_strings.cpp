// EXPECT: giwa::device_array: elements are copied byte by byte
// SPDX-License-Identifier: MIT
// An element that owns memory of the host has no place on the device.
#include <giwa/device/array.hpp>

#include <string>

#if defined(GIWA_COMPILE_FAIL)
using element = std::string;
#else
using element = char;
#endif
giwa::device_array<element> array;
