// SPDX-License-Identifier: MIT
// The version of giwa. The code and CMake both read it from here.
#ifndef GIWA_VERSION_HPP
#define GIWA_VERSION_HPP

#define GIWA_VERSION_MAJOR 0
#define GIWA_VERSION_MINOR 3
#define GIWA_VERSION_PATCH 0

/// The version as one number that can be compared: 0.3.0 is 300, 1.2.3 is 10203.
#define GIWA_VERSION (GIWA_VERSION_MAJOR * 10000 + GIWA_VERSION_MINOR * 100 + GIWA_VERSION_PATCH)

#endif
